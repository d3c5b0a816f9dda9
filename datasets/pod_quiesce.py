"""Ask the programs that write to a claim to pause, through one of their pods: only pods see what it holds."""

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
# For the start of python3 in the pod, beside the wait for the programs; and for an answer of what runs there.
START_SECONDS, ANSWER_SECONDS = 20.0, 5.0
# Of what a pod has printed; a line of the script is a word.
UNREAD_BYTES = 4096


class PodPause:
    """As datasets.storage.quiesce.Pause, of programs that a process in a pod has asked."""

    def __init__(self, process: Process | None, budget: Budget) -> None:
        self._process, self._budget, self._unread = process, budget, b""

    def answer(self, seconds: float) -> str:
        """Return the next line that the process prints, "" at its end or when it does not come in time."""
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
        """Return whether all programs have paused until now, and let them go on."""
        if self._process is None:
            return False
        with suppress(OSError):
            self._process.write(b"\n")
        return self.answer(ANSWER_SECONDS) == quiesce.PAUSED

    def end(self) -> None:
        """Let the programs go on, also when the command was cancelled."""
        if self._process is None:
            return
        self._budget = UNLIMITED
        # Killed, it would leave its request, and programs would wait for long.
        with suppress(OSError):
            self._process.write(b"\n")
        until = time.monotonic() + ANSWER_SECONDS
        while self.answer(until - time.monotonic()) and time.monotonic() < until:
            continue
        self._process.close()


@contextmanager
def quiesced_by_pod(volume: Volume, token: str, jobs: Collection[str], budget: Budget) -> Iterator[PodPause]:
    """Yield when every one of these running jobs has paused, or does not within the time; see `has_lasted`."""
    pause = PodPause(_asking(volume, token, jobs), budget)
    try:
        pause.answer(START_SECONDS + quiesce.WAIT_SECONDS)
        yield pause
    finally:
        pause.end()


def _asking(volume: Volume, token: str, jobs: Collection[str]) -> Process | None:
    """Start what asks in a pod that writes to the volume; None where there is none, or it cannot be started there."""
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
    """Return what runs in the pod; its arguments are those of datasets.storage.quiesce.main."""
    return inspect.getsource(quiesce).replace("from datasets.storage.trees import OWN\n", f"OWN = {OWN!r}\n")
