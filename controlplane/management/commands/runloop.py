"""`python manage.py runloop`: the loop alone, without Celery, for deployments that want it in a process of its own."""

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.loop.runner import Runner


class Command(BaseCommand):
    """Run the loop in the foreground until SIGINT or SIGTERM."""

    help = "Run the loop in the foreground."

    def handle(self, *args: Any, **options: Any) -> None:
        stopped = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        runner = Runner()
        runner.start()
        stopped.wait()
        runner.stop()
