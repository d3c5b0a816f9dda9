"""Django application of the pages: templates and template tags, no models."""

from django.apps import AppConfig


class DashboardsConfig(AppConfig):
    """Registers the app's templates and template tags."""

    name = "dashboards"
