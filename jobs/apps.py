"""Django application of jobs."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """The jobs app: jobs, their attempts and pods."""

    name = "jobs"
