"""`python manage.py runloop`: the loop alone, without Celery, for deployments that run it in a process of its own."""

import os
import signal
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.loop.runner import Runner


class Command(BaseCommand):
    """Runs the loop in the foreground, without Celery, until SIGINT or SIGTERM."""

    help = "Run the loop in the foreground."

    def handle(self, *args: Any, **options: Any) -> None:
        asked_to_stop = _stop_signal()
        runner = Runner(has_broker=False)
        runner.start()
        os.read(asked_to_stop, 1)
        runner.stop()


def _stop_signal() -> int:
    """Install signal handlers and return a file descriptor that becomes readable on SIGINT or SIGTERM. An event set
    by a handler is not enough: if the signal arrives just before this thread waits, Python runs the handler only
    after the wait."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return read
