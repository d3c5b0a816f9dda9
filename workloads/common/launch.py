"""Run a program alone, as a rank, or (in the launcher of an MPI job) as one rank in each pod: `python -m
workloads.common.launch MODULE [ARGUMENTS]`.

Ranks are started by mpirun if it works here, else by this program on this machine. The first rank that fails is
reported with its error; the others are ended CLEAN_UP_SECONDS (10) later, and the exit code is that of the first.
Imports no torch."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

# Marks processes as ranks, so that a rank never starts ranks. An argument, because all launchers pass these
# on but not all variables, and each names the rank's variable differently.
LAUNCHED_ARGUMENT, LAUNCHED = "--launched", "TRAINYARD_LAUNCHED"
RANKS, FAILURES, ERROR_FILE = "TRAINYARD_RANKS", "TRAINYARD_FAILURES", "TRAINYARD_ERROR_FILE"
# Variables with the rank, by launcher; the last is our own.
RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
CLEAN_UP_SECONDS = float(os.environ.get("CLEAN_UP_SECONDS", "10"))
KILL_SECONDS = 5.0
KILLED = 137
POLL_SECONDS = 0.05
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True)
class Failure:
    rank: int
    node: str
    exit_code: int
    error: str

    def __str__(self) -> str:
        where = f" on {self.node}" if self.node else ""
        if self.exit_code == KILLED:
            return f"Rank {self.rank}{where} was killed."
        what = f": {self.error}" if self.error else "."
        return f"Rank {self.rank}{where} failed first, with exit code {self.exit_code}{what}"


class LaunchRefused(ValueError):
    """Ranks cannot be started. The message gives the reason."""


def main(arguments: Sequence[str]) -> int:
    is_launched = arguments[0] == LAUNCHED_ARGUMENT
    module, *rest = arguments[is_launched:]
    rank = next((int(os.environ[name]) for name in RANK_NAMES if name in os.environ), None)
    if is_launched:
        os.environ[LAUNCHED] = "1"
    if rank is not None or int(os.environ.get(RANKS, "1")) == 1:
        return _run(module, rest, rank)
    try:
        return Launch(int(os.environ[RANKS]), module, rest).run()
    except LaunchRefused as refusal:
        print(refusal, file=sys.stderr)
        return 2


class Launch:
    """One run of a module in `ranks` processes. `is_local`: start them on this machine, without mpirun. Creating
    it raises LaunchRefused in a process that is a rank already."""

    def __init__(self, ranks: int, module: str, arguments: Sequence[str], *, is_local: bool = False) -> None:
        if LAUNCHED in os.environ:
            raise LaunchRefused(f"This process was started as a rank: it does not start {ranks} more.")
        program = [sys.executable, "-m", "workloads.common.launch", LAUNCHED_ARGUMENT, module]
        self._ranks, self._command, self._is_local = ranks, [*program, *arguments], is_local
        self._processes: list[subprocess.Popen[bytes]] = []
        self._is_stopped = False

    def run(self) -> int:
        """Start all ranks, forward SIGTERM to them, and wait for their end. Return the exit code of the first
        rank that failed, else 0; after SIGTERM, the first code that is not 0."""
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            signal.signal(signal.SIGTERM, self._pass_on)
            self._start({**os.environ, FAILURES: folder})
            failure = self._wait(Path(folder))
            codes = [process.wait() for process in self._processes]
        if self._is_stopped or failure is None:
            return next((code if code > 0 else 128 - code for code in codes if code), 0)
        _publish(str(failure))
        return failure.exit_code

    def _start(self, env: dict[str, str]) -> None:
        mpirun = "" if self._is_local else working_mpirun()
        if mpirun:
            print(f"{self._ranks} ranks by {mpirun}", flush=True)
            command = [mpirun, "-n", str(self._ranks), *self._command]
            self._processes = [subprocess.Popen(command, env=env)]
            return
        why = "" if self._is_local else ": there is no mpirun that runs"
        print(f"{self._ranks} ranks by this program, on this machine{why}", flush=True)
        # Variables of a launcher that started this process as a single rank.
        env = {name: value for name, value in env.items() if name not in RANK_NAMES}
        for rank in range(self._ranks):
            own = {"RANK": str(rank), "WORLD_SIZE": str(self._ranks), "LOCAL_RANK": str(rank)}
            self._processes.append(subprocess.Popen(self._command, env={**env, **own}))

    def _wait(self, folder: Path) -> Failure | None:
        """Wait for the end, or until a failure and then CLEAN_UP_SECONDS for the others to end by themselves, after
        which they are killed. Return the first failure, None if there is none."""
        failure, until = None, float("inf")
        while any(process.poll() is None for process in self._processes):
            if failure is None:
                failure = first_failure(folder)
                until = time.monotonic() + CLEAN_UP_SECONDS if failure else until
            if time.monotonic() > until:
                self._end()
            time.sleep(POLL_SECONDS)
        return failure or first_failure(folder)

    def _end(self) -> None:
        """Terminate remaining processes, then kill those that do not end."""
        self._signal(signal.SIGTERM)
        end = time.monotonic() + KILL_SECONDS
        while any(process.poll() is None for process in self._processes) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._is_stopped = True
        self._signal(number)


def working_mpirun() -> str:
    """Return the path of an mpirun that works here, "" if there is none."""
    found = shutil.which("mpirun")
    if found is None:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if subprocess.run([found, "--version"], capture_output=True, timeout=20, check=False).returncode == 0:
            return found
    return ""


def first_failure(folder: Path) -> Failure | None:
    """Return the failure that was recorded first, None if there is none."""
    for file in sorted(folder.glob("failure-*.json")):
        return Failure(**json.loads(file.read_text()))
    return None


def _run(module: str, arguments: Sequence[str], rank: int | None) -> int:
    """Run a module as a program and return its exit code. A rank (`rank` not None) runs in a child process, so
    that this process can record that it was killed."""
    sys.argv = [module, *arguments]
    if rank is None:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        return _run_rank(module, rank)
    signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        code = 128 - code
        _note(rank, code, "")
    return code


def _run_rank(module: str, rank: int) -> int:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code, error = _exit_code(end)
        if code:
            _note(rank, code, error)
        return code
    except BaseException as error:
        _note(rank, 1, f"{type(error).__name__}: {error}")
        raise
    return 0


def _note(rank: int, code: int, error: str) -> None:
    """Record the failure of a rank for the launcher, in a file whose name sorts by time; print it if the launcher is
    on another machine."""
    folder, node = Path(os.environ.get(FAILURES, "/nonexistent")), os.environ.get("TRAINYARD_NODE", "")
    if folder.is_dir():
        failure = Failure(rank, node, code, error.partition("\n")[0])
        _write(folder / f"failure-{time.time_ns()}-{rank}.json", asdict(failure))
    else:
        # On another machine than the launcher: print to this rank's output, which becomes part of the
        # launcher's log.
        print(f"rank {rank} ended with exit code {code}", flush=True)


def _write(file: Path, fields: Mapping[str, object]) -> None:
    fresh = file.with_name(f".{file.name}")
    fresh.write_text(json.dumps(fields))
    # By rename, because the launcher may read the directory at any time.
    fresh.rename(file)


def _exit_code(end: SystemExit) -> tuple[int, str]:
    if isinstance(end.code, int):
        return end.code, ""
    return (0, "") if end.code is None else (1, str(end.code))


def _publish(text: str) -> None:
    """Print a failure, and write it to the file named in ERROR_FILE's variable, which the control plane reads."""
    print(text, flush=True)
    if ERROR_FILE in os.environ:
        with contextlib.suppress(OSError):
            Path(os.environ[ERROR_FILE]).write_text(text)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
