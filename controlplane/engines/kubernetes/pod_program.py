"""What our programs in pods share. Its text comes before theirs (pod_scripts.py): runs on Python 3.9."""

from __future__ import annotations

import json
import sys
from typing import NoReturn


def say(**fields: object) -> None:
    """Print one line of JSON with these fields. The control plane reads it from the pod's log."""
    sys.stdout.write(f"{json.dumps(fields)}\n")
    sys.stdout.flush()


def leave(code: int, words: str) -> NoReturn:
    """Exit with this code and message; the kubelet keeps the last lines as the container's termination message."""
    sys.stderr.write(f"{words}\n")
    sys.exit(code)
