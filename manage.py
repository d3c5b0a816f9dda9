#!/usr/bin/env python
"""Django's command line for operators: `python manage.py up` starts everything on this machine."""

import os
import sys

from controlplane.config.garbage import collect_rarely


def main() -> None:
    collect_rarely()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
