"""What processes that do not end are doing, as text for a failed test: the kernel's view, Python's stacks, and logs."""

import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import patience

# Python programs write the stacks of all threads on SIGABRT when this is in their environment.
STACKS = {"PYTHONFAULTHANDLER": "1"}
LAST_BYTES = 16_384


def explain(processes: Iterable[psutil.Process], logs: Iterable[Path]) -> str:
    """Describe the processes, end them by SIGABRT, and add the ends of the logs, with the stacks that this wrote."""
    there = list(processes)
    parts = [_describe(process) for process in there]
    for process in there:
        with suppress(psutil.NoSuchProcess):
            # One that is stopped would not take the signal.
            process.send_signal(signal.SIGABRT)
            process.send_signal(signal.SIGCONT)
    _, left = psutil.wait_procs(there, timeout=patience(5))
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return "\n\n".join([*parts, *(_last_of(path) for path in logs)])


def _describe(process: psutil.Process) -> str:
    """Return the command and state of a process, and of each thread where in the kernel it waits."""
    try:
        status, words = process.status(), " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return f"process {process.pid} ended just now"
    masks = [
        line for line in _read(Path(f"/proc/{process.pid}/status")).splitlines() if line.startswith("Sig")
    ]
    tasks = sorted(Path(f"/proc/{process.pid}/task").glob("*"))
    threads = [f"  thread {task.name} in {_read(task / 'wchan')}: {_call_chain(task)}" for task in tasks]
    return "\n".join([f"process {process.pid}, {status}: {words}", f"  {', '.join(masks)}", *threads])


def _call_chain(task: Path) -> str:
    """Return the functions of the kernel that a thread is in; only root may read them."""
    return " < ".join(line.split()[-1].partition("+")[0] for line in _read(task / "stack").splitlines())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _last_of(path: Path) -> str:
    return f"== {path}\n{_read(path)[-LAST_BYTES:]}"
