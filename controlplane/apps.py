"""Registers the control plane, its Celery application and its start-up checks."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """State, decisions and the loop."""

    name = "controlplane"

    def ready(self) -> None:
        # imported here and not in the package, so that pure packages import without Django or Celery
        from controlplane import celery_app, checks  # noqa: F401  registering is their effect
