"""A client of an API server whose clock a test sets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import Access


class ClockClient(Client):
    """A client without credentials of the server at `url`, for whose time `now_ms` (Unix ms) is asked."""

    def __init__(self, url: str, now_ms: Callable[[], int]) -> None:
        super().__init__(Access(url, None))
        self._now_ms = now_ms

    def server_time(self) -> datetime:
        return datetime.fromtimestamp(self._now_ms() / 1000, UTC)
