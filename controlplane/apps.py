"""Register the control plane and its system checks."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    name = "controlplane"

    def ready(self) -> None:
        # Imported here, so that pure packages can be imported without Django.
        from controlplane import checks  # noqa: F401  registering is its effect
