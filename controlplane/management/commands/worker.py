"""`python manage.py worker`: a Celery worker for long commands.

Several may run, on any machine that shares PostgreSQL and Redis with the control plane.
"""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from controlplane.celery_app import run_worker
from controlplane.commands.registry import task_queues
from controlplane.loop.claim_tokens import free_what_the_dead_hold
from controlplane.loop.wake import wake_now


class Command(BaseCommand):
    """Runs a Celery worker for long commands in the foreground, until SIGINT or SIGTERM."""

    # System checks load every page and the API: 25 MB that a worker never uses.
    requires_system_checks: list[str] = []
    help = "Carry out long commands: checks of clusters, removals, and what other apps declare."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--queue", action="append", choices=task_queues(), help="only this queue")
        parser.add_argument("--pool", choices=("threads", "prefork"), default="threads")
        parser.add_argument("--concurrency", type=int, default=4, help="commands at a time")
        parser.add_argument("--loglevel", default="info")

    def handle(self, *args: Any, **options: Any) -> None:
        if free_what_the_dead_hold():
            # Frees the claims of a killed predecessor, so that its commands are sent again at once.
            wake_now()
        connection.close()
        code = run_worker(
            pool=options["pool"],
            concurrency=options["concurrency"],
            level=options["loglevel"],
            queues=options["queue"] or task_queues(),
            name="tasks@",
        )
        if code:
            sys.exit(code)
