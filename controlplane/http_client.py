"""The common part of the control plane's clients: connections, and delays before a retry. Standard library only."""

from __future__ import annotations

import http.client
import time
from urllib.parse import SplitResult

LONGEST_WAIT_SECONDS = 30.0
# Statuses with which the server asks to retry later; it has written nothing.
LATER = frozenset({429, 502, 503})
# Codes of such answers that stay until an operator corrects something (datasets.storage.bucket,
# datasets.queries.lake): they are final for a user who waits. `no_such_host` is none of them: name servers that follow
# services deny the name of one that is being restarted.
FINAL = frozenset({"not_trusted", "no_bucket", "not_writable", "not_mounted"})
# A pause of at least this many seconds is announced, and a request that has no answer by then: a user hardly
# notices shorter ones.
SAID_SECONDS = 2.5


def open_connection(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    """Return a connection to the host and port of a URL, over TLS for https. It connects at the first request.
    `timeout`: seconds for connecting and for each read or write."""
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout)


def retry_delay(retry_after: str | None, attempt: int) -> float:
    """Return the seconds to wait before a retry, at most LONGEST_WAIT_SECONDS. `retry_after`: the server's header,
    seconds or an HTTP date; 1 s if malformed. Without it the delay is 0.5, 1, 2 ... for `attempt` 1, 2, 3 ..."""
    if retry_after is None:
        return min(0.25 * 2.0**attempt, LONGEST_WAIT_SECONDS)
    try:
        return min(max(float(retry_after), 0.0), LONGEST_WAIT_SECONDS)
    except ValueError:
        return min(max(_seconds_until(retry_after), 0.0), LONGEST_WAIT_SECONDS)


def waits_words(detail: str, seconds: float, attempt: int, attempts: int) -> str:
    """Return a line for the user: `detail`, then that attempt number `attempt` of `attempts` begins in `seconds`."""
    return f"{detail} Next attempt in {seconds:.0f} s ({attempt} of {attempts})."


def _seconds_until(http_date: str) -> float:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(http_date).timestamp() - time.time()
    except ValueError:
        return 1.0
