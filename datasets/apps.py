"""Django application of data."""

from django.apps import AppConfig


class DatasetsConfig(AppConfig):
    """The datasets app: code trees, datasets, caches, volumes, snapshots and artifacts."""

    name = "datasets"

    def ready(self) -> None:
        from datasets import checks  # noqa: F401  registering is its effect
