"""Probe a cluster that has sent nothing for a while, without making callers wait for an unreachable one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.kubernetes_api.errors import ApiError

# A reachable cluster answers within this time; an unreachable one delays only one caller once.
ANSWER_SECONDS = 0.5


class Probe:
    """Calls `ask`, which raises if the cluster does not answer, on a thread of its own; one call at a time.
    Thread-safe."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask, self._lock = ask, threading.Lock()
        self._asking: threading.Thread | None = None
        self._answered_at, self._trouble = float("-inf"), ""

    def require_answer(self, fresh_seconds: float) -> None:
        """Raise EngineUnreachable unless the last successful probe is at most `fresh_seconds` old. Otherwise start a
        new probe; wait for it, at most ANSWER_SECONDS, only if the previous one succeeded."""
        if self._is_fresh(fresh_seconds):
            return
        with self._lock:
            # Wait for an unreachable cluster only once, because the loop has other clusters to serve.
            wait_seconds = 0.0 if self._trouble else ANSWER_SECONDS
            if self._asking is None or not self._asking.is_alive():
                self._asking = threading.Thread(target=self._run, name="probe", daemon=True)
                self._asking.start()
            asking = self._asking
        asking.join(wait_seconds)
        with self._lock:
            if not self._is_fresh(fresh_seconds):
                self._trouble = self._trouble or "The cluster does not answer."
                raise EngineUnreachable(self._trouble)

    def _is_fresh(self, seconds: float) -> bool:
        return time.monotonic() - self._answered_at <= seconds

    def _run(self) -> None:
        # Remains if `ask` raises an unexpected exception, which ends only this thread.
        trouble = "It could not be checked."
        try:
            self._ask()
            trouble, self._answered_at = "", time.monotonic()
        except (ApiError, EngineUnreachable, EngineRefused) as error:
            trouble = str(error)
        finally:
            with self._lock:
                self._trouble = trouble
