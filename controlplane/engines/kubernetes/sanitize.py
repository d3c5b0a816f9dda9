"""Clean text from a cluster before it is stored or shown. Pure.

A tenant's process writes its own termination message, and a node's operator its labels: remove what a
database refuses or a terminal executes.
"""

from __future__ import annotations

import re

# of what is kept as an integer, as a small one
LARGEST, LARGEST_SMALL = 2**31 - 1, 2**15 - 1
# ASCII's and Unicode's control characters, and those that turn the direction of what follows
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def line(text: object, longest: int = 480) -> str:
    """Return text on one line of at most `longest` characters, without control characters."""
    words = " ".join(_CONTROLS.sub(" ", str(text)).split())
    return words if len(words) <= longest else f"{words[: longest - 1]}…"


def count(text: str, largest: int = LARGEST) -> int:
    """Return a label's number, at most `largest`; 0 for anything that is not a number."""
    return min(int(text), largest) if text.isascii() and text.isdecimal() else 0
