"""`python manage.py loopworker`: the Celery worker that hosts the loop."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.celery_app import run_worker


class Command(BaseCommand):
    """Runs a Celery worker with the loop in the foreground, until SIGINT or SIGTERM."""

    # System checks load every page and the API: 25 MB that a worker never uses.
    requires_system_checks: list[str] = []
    help = "Host the loop in a Celery worker, as make up does."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--loglevel", default="info")

    def handle(self, *args: Any, **options: Any) -> None:
        from controlplane.loop import host  # noqa: F401  connects the loop to the worker's signals

        if code := run_worker(pool="threads", concurrency=2, level=options["loglevel"]):
            sys.exit(code)
