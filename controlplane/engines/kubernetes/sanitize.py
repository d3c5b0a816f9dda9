"""Clean text from a cluster before it is stored or shown. No I/O.

Users' processes write their own termination messages, and cluster operators write labels: remove what a database
refuses or a terminal would execute.
"""

from __future__ import annotations

import re

# The largest value that is stored as a small integer.
LARGEST, LARGEST_SMALL = 2**31 - 1, 2**15 - 1
# ASCII's and Unicode's control characters, including those that change the direction of text.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def line(text: object, longest: int = 480) -> str:
    """Return text on one line, without control characters; longer text is cut to `longest` characters."""
    words = " ".join(_CONTROLS.sub(" ", str(text)).split())
    return words if len(words) <= longest else f"{words[: longest - 1]}…"


def count(text: str, largest: int = LARGEST) -> int:
    """Return the decimal number in a label, at most `largest`; 0 if it is none."""
    return min(int(text), largest) if text.isascii() and text.isdecimal() else 0
