"""Register the control plane, its Celery application and its system checks."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """The Django app of the control plane."""

    name = "controlplane"

    def ready(self) -> None:
        # Imported here, so that pure packages can be imported without Django and Celery.
        from controlplane import celery_app, checks  # noqa: F401  registering is their effect
