"""Limits on a request's head, checked before any header is parsed. No I/O.

Python 3.11's cookie parser is quadratic in the number of backslashes: 64 KiB of them took 30 s and 8 KiB 0.2 s, on
the one thread that serves pages.
"""

from collections.abc import Iterable
from dataclasses import dataclass

# The request line and all headers together.
HEADERS_MOST_BYTES = 32 * 1024
HEADERS_MOST_COUNT = 128
COOKIE_MOST_BYTES = 8 * 1024
# The messages cookie has a backslash for each `"` and `,` of its JSON: a few hundred at its largest.
COOKIE_MOST_BACKSLASHES = 1024
STATUS = 431


@dataclass(frozen=True, slots=True)
class HeaderRefusal:
    """Why a request gets 431: a stable code, and a message with the next step."""

    code: str
    detail: str


TOO_LARGE = HeaderRefusal(
    "headers_too_large",
    f"Send at most {HEADERS_MOST_BYTES} bytes in at most {HEADERS_MOST_COUNT} headers.",
)
COOKIE_TOO_LARGE = HeaderRefusal(
    "cookie_too_large",
    f"Send at most {COOKIE_MOST_BYTES} bytes of cookies; delete the cookies of this site and sign in again.",
)


def header_refusal(headers: Iterable[tuple[bytes, bytes]]) -> HeaderRefusal | None:
    """Return why these headers are refused, None if they are within the limits. Names must be in lower case."""
    count = size = cookie_size = backslashes = 0
    for name, value in headers:
        count += 1
        size += len(name) + len(value)
        if name == b"cookie":
            cookie_size += len(value)
            backslashes += value.count(b"\\")
    if size > HEADERS_MOST_BYTES or count > HEADERS_MOST_COUNT:
        return TOO_LARGE
    if cookie_size > COOKIE_MOST_BYTES or backslashes > COOKIE_MOST_BACKSLASHES:
        return COOKIE_TOO_LARGE
    return None
