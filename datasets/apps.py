"""Django application of data."""

from django.apps import AppConfig


class DatasetsConfig(AppConfig):
    """The datasets app: the code that jobs run, and datasets."""

    name = "datasets"

    def ready(self) -> None:
        from datasets import checks  # noqa: F401  registering is its effect
