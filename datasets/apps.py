"""Registers the datasets application."""

from django.apps import AppConfig


class DatasetsConfig(AppConfig):
    """Data: the code that jobs run, and datasets."""

    name = "datasets"
