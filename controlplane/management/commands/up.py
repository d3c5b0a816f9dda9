"""`python manage.py up`: the same as `make up`, without installing packages first."""

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Replaces this process with the supervisor, which starts the whole control plane in the foreground."""

    help = "Start the control plane under its supervisor, until SIGINT or SIGTERM."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        # Replaces this process, because the supervisor runs for months and does not need Django's memory.
        os.execv(sys.executable, [sys.executable, "-m", "controlplane.supervisor"])
