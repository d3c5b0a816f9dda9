"""The pages' Django app: templates and template tags, no models."""

from django.apps import AppConfig


class DashboardsConfig(AppConfig):
    """Holds templates and tags."""

    name = "dashboards"
