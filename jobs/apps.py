"""Registers the jobs application."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """Work: jobs, their attempts and pods."""

    name = "jobs"
