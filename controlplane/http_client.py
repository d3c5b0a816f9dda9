"""The common part of the control plane's clients: connections, and delays before a retry. Standard library only."""

from __future__ import annotations

import http.client
import time
from urllib.parse import SplitResult

LONGEST_WAIT_SECONDS = 30.0
# Statuses with which the server asks to retry later; it has written nothing.
LATER = frozenset({429, 502, 503})


def open_connection(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    """Return a connection to the server of a URL; it connects with the first request, over TLS for https."""
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout)


def retry_delay(retry_after: str | None, attempt: int) -> float:
    """Return how many seconds to wait before a retry: what Retry-After asks for (seconds or a date), else 0.5, 1, 2
    and so on; at most LONGEST_WAIT_SECONDS."""
    if retry_after is None:
        return min(0.25 * 2.0**attempt, LONGEST_WAIT_SECONDS)
    try:
        return min(max(float(retry_after), 0.0), LONGEST_WAIT_SECONDS)
    except ValueError:
        return min(max(_seconds_until(retry_after), 0.0), LONGEST_WAIT_SECONDS)


def _seconds_until(http_date: str) -> float:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(http_date).timestamp() - time.time()
    except ValueError:
        return 1.0
