"""Report the state and reason of a followed job on standard error while its log is silent."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from controlplane.cli.errors import CliError
from controlplane.cli.lookup import FINAL_STATES
from controlplane.cli.session import Session

if TYPE_CHECKING:
    from controlplane.cli.client import Client

QUIET_SECONDS = 1.0
# Intervals of reading the job: before its first line, and longer afterwards, when pauses are frequent.
LOOK_SECONDS, LOOK_PRINTING_SECONDS = 2.0, 10.0


def state_sentence(job: dict[str, Any]) -> str:
    """Return a job's state and reason as a sentence: `train1 is queued: no GPU is free`. `job`: in REST form."""
    status = job["status"]
    state, reason = status["state"], (status.get("reason") or {}).get("message")
    verb = state.replace("_", " ") if state in FINAL_STATES else f"is {state}"
    missing = "no reason yet" if state == "queued" else ""
    return ": ".join(filter(None, [f"{job['name']} {verb}", reason or missing]))


class SilenceReporter:
    """Prints the state of a followed job after QUIET_SECONDS without output, and again when it changes.

    `identifier`: the job's id; `said`: a state that was printed already. A thread with a connection of its own reads
    the job, only during silence.
    """

    def __init__(self, session: Session, identifier: str, said: str = "") -> None:
        self._session = session
        self._path = f"jobs/{identifier}"
        self._said = said
        self.has_printed = False
        self._last_line_at = time.monotonic()
        # Held while printing, so that nothing is printed after `close`.
        self._lock = threading.Lock()
        self._closed = threading.Event()
        # A daemon thread, because the command may end while it waits for a response.
        threading.Thread(target=self._watch, name="silence", daemon=True).start()

    def note_line(self) -> None:
        """Record that the log printed a line: the silence begins anew."""
        with self._lock:
            self._last_line_at, self.has_printed, self._said = time.monotonic(), True, ""

    def close(self) -> None:
        """End the reports: nothing is printed after this returns."""
        with self._lock:
            self._closed.set()

    def _watch(self) -> None:
        client = self._session.new_client()
        pause = QUIET_SECONDS
        while not self._closed.wait(pause):
            pause = self._last_line_at + QUIET_SECONDS - time.monotonic()
            if pause <= 0:
                self._look(client)
                pause = LOOK_PRINTING_SECONDS if self.has_printed else LOOK_SECONDS
        client.close()

    def _look(self, client: Client) -> None:
        try:
            job = client.get(self._path)
        except CliError:
            # The log's own connection reports errors of the server, and the next attempt may succeed.
            return
        with self._lock:
            if self._is_news(job):
                self._said = state_sentence(job)
                self._session.output.aside(self._said)

    def _is_news(self, job: dict[str, Any]) -> bool:
        state = job["status"]["state"]
        # "Running" is news only before the job has printed anything.
        is_expected = state in ("running", "scaling") and self.has_printed and not self._said
        is_over = state in FINAL_STATES or self._closed.is_set()
        is_silent = time.monotonic() - self._last_line_at >= QUIET_SECONDS
        return is_silent and not is_over and not is_expected and state_sentence(job) != self._said
