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
    """Runs `ask` on a thread of its own, one call at a time. Thread-safe."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._lock, self._answered = threading.Lock(), threading.Event()
        self._is_asking = False
        self._answered_at = float("-inf")
        self._trouble = ""

    def require_answer(self, fresh_seconds: float) -> None:
        """Raise EngineUnreachable unless the last success is at most `fresh_seconds` old. Otherwise start a new
        probe; wait for it only if the previous one succeeded."""
        if self._age() <= fresh_seconds:
            return
        with self._lock:
            # Wait for an unreachable cluster only once, because the loop has other clusters to serve.
            is_away = bool(self._trouble)
            if not self._is_asking:
                self._is_asking = True
                self._answered.clear()
                threading.Thread(target=self._run, name="probe", daemon=True).start()
        if not is_away:
            self._answered.wait(ANSWER_SECONDS)
        if self._age() <= fresh_seconds:
            return
        with self._lock:
            self._trouble = self._trouble or "The cluster does not answer."
            raise EngineUnreachable(self._trouble)

    def _age(self) -> float:
        return time.monotonic() - self._answered_at

    def _run(self) -> None:
        # Remains if `ask` raises an unexpected exception, which ends only this thread.
        trouble = "It could not be asked."
        try:
            self._ask()
            trouble, self._answered_at = "", time.monotonic()
        except (ApiError, EngineUnreachable, EngineRefused) as error:
            trouble = str(error)
        finally:
            with self._lock:
                self._is_asking, self._trouble = False, trouble
            self._answered.set()
