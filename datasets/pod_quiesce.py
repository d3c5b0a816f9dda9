"""Pause the programs that write to a claim, through one of their pods: only pods can access its files."""

import inspect
import logging
import select
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache

from controlplane.engines.base import RUNNING, STDOUT, EngineRefused, EngineUnreachable, Process
from controlplane.loop.engine_pool import engine_for
from datasets.models import Volume
from datasets.queries.volumes import writing_pods
from datasets.storage import quiesce
from datasets.storage.base import UNLIMITED, Budget
from datasets.storage.trees import OWN
from jobs.models import Pod

logger = logging.getLogger(__name__)
# Time for python3 to start in the pod, beyond the wait for the programs; and for each of its answers.
START_SECONDS, ANSWER_SECONDS = 20.0, 5.0
# Limit on the bytes read from the pod's script, whose lines are single words.
UNREAD_BYTES = 4096


class PodPause:
    """Pauses programs through a process in a pod: the counterpart of datasets.storage.quiesce.Pause for volumes
    that only pods can access. `has_paused`: whether all programs paused when they were asked."""

    def __init__(self, process: Process | None, budget: Budget) -> None:
        self._process, self._budget, self._unread = process, budget, b""
        self.has_paused = False

    def __bool__(self) -> bool:
        return self.has_paused

    def answer(self, seconds: float) -> str:
        """Return the next line of the process's output; "" at its end or after `seconds`. Raises what the
        budget's check raises."""
        until = time.monotonic() + seconds
        while self._process is not None and b"\n" not in self._unread:
            self._budget.check()
            try:
                output, data = self._process.read()
            except (EOFError, OSError):
                return ""
            if time.monotonic() > until:
                return ""
            if not data:
                select.select([self._process], [], [], 0.5)
            elif output == STDOUT:
                self._unread = (self._unread + data)[-UNREAD_BYTES:]
            else:
                logger.info("a pod that asks programs to pause: %s", data[:200].decode(errors="replace"))
        text, _, self._unread = self._unread.partition(b"\n")
        return text.decode(errors="replace")

    def has_lasted(self) -> bool:
        """Return whether all programs have stayed paused until now; then let them continue. False if the pod does
        not answer."""
        if self._process is None:
            return False
        with suppress(OSError):
            self._process.write(b"\n")
        return self.answer(ANSWER_SECONDS) == quiesce.PAUSED

    def end(self) -> None:
        """Let the programs continue, also after a cancelled command."""
        if self._process is None:
            return
        self._budget = UNLIMITED
        # If the process were killed, its request would stay in the volume and programs would wait until their
        # own limit.
        with suppress(OSError):
            self._process.write(b"\n")
        until = time.monotonic() + ANSWER_SECONDS
        while self.answer(until - time.monotonic()) and time.monotonic() < until:
            continue
        self._process.close()


@contextmanager
def quiesced_by_pod(volume: Volume, token: str, jobs: Collection[str], budget: Budget) -> Iterator[PodPause]:
    """Context manager whose block begins when all of these running jobs have paused, or the time is over; `token`
    identifies the snapshot. Call `has_lasted` of the yielded value after the copy: it is False if not all paused.
    Raises what `budget` raises."""
    pause = PodPause(_asking(volume, token, jobs), budget)
    try:
        pause.has_paused = pause.answer(START_SECONDS + quiesce.WAIT_SECONDS) == quiesce.PAUSED
        yield pause
    finally:
        pause.end()


def _asking(volume: Volume, token: str, jobs: Collection[str]) -> Process | None:
    """Start the pausing script in a pod that writes to the volume; return None if there is no such pod or it
    cannot start."""
    use = volume.uses.filter(is_read_only=False, job__pods__state=RUNNING).first()
    pod = Pod.objects.filter(job=use.job_id, state=RUNNING, released_at=None).first() if use else None
    if use is None or pod is None:
        return None
    arguments = use.mount_path, token, ",".join(jobs), ",".join(writing_pods(volume))
    try:
        engine = engine_for(volume.project.cluster)
        return engine.run_command(pod.name, ("python3", "-I", "-c", script(), *arguments))
    except (EngineRefused, EngineUnreachable) as error:
        logger.info("programs that write to %s were not asked to pause: %s", volume, error)
        return None


@cache
def script() -> str:
    """Return the Python script for the pod; its arguments are those of datasets.storage.quiesce.main."""
    return inspect.getsource(quiesce).replace("from datasets.storage.trees import OWN\n", f"OWN = {OWN!r}\n")
