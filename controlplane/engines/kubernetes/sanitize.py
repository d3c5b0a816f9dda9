"""What a cluster says, made fit to be kept and shown. Pure.

A tenant's process writes its own termination message, whoever runs a node writes its labels: neither may hold
what a database refuses, or what a terminal obeys.
"""

from __future__ import annotations

import re

LARGEST, LARGEST_SMALL = 2**31 - 1, 2**15 - 1  # of what is kept as an integer, as a small one
# ASCII's and Unicode's control characters, and those that turn the direction of what follows
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def line(text: object, longest: int = 480) -> str:
    """Words of the cluster on one line of at most `longest` characters, without control characters."""
    words = " ".join(_CONTROLS.sub(" ", str(text)).split())
    return words if len(words) <= longest else f"{words[: longest - 1]}…"


def count(text: str, largest: int = LARGEST) -> int:
    """A number that a label tells, at most `largest`; 0 for what is none."""
    return min(int(text), largest) if text.isascii() and text.isdecimal() else 0
