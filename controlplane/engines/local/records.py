"""The directory of one pod, in which the engine, the pod's shim and, in `elastic/`, the pod itself write:

launch   the shim's input                             spec  the prepared pod, for the engine
start    identity of the command and of the shim      exit  how the pod ended
stop     once a stop is requested: grace in seconds   lock  held by the shim while it lives
control  a named pipe that wakes the shim for a stop
elastic/ for jobs whose size may change: membership file, the pod's status reports, a link to the engine's wakeup pipe
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controlplane.engines.base import CodeSource, DeviceShare, GangMember, MemberReport, Mount, PodSpec
from controlplane.engines.local import processes

# As in workloads.common.membership.
MEMBERSHIP, STATUS, WAKEUP = ("membership.json", "status.json", "wakeup")
# The most bytes read of a status file, which the pod writes; a longer one is truncated and thus invalid JSON.
LONGEST_STATUS = 64 * 1024
SPEC, LAUNCH, START, EXIT, STOP, LOCK, CONTROL = "spec", "launch", "start", "exit", "stop", "lock", "control"
# The directory that the pod and the engine share.
ELASTIC = "elastic"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A pod with its command line, environment and ports resolved, as stored before its start. `ports`: declared port
    -> host port; `log_most_bytes`: see output.Output; `preload`: see Image."""

    spec: PodSpec
    argv: tuple[str, ...]
    env: Mapping[str, str]
    work_dir: str
    ports: Mapping[int, int]
    log_most_bytes: int
    preload: tuple[str, ...] = ()

    @property
    def token(self) -> str:
        return self.env[processes.TOKEN_VARIABLE]


@dataclass(frozen=True, slots=True)
class StartRecord:
    """The identity of a pod's processes, written before the command runs. Ticks are kernel start times, which with
    process id and boot id identify a process; `pid` is the command's."""

    shim_pid: int
    shim_ticks: int
    pid: int
    ticks: int
    boot_id: str
    started_ms: int

    def is_shim_alive(self) -> bool:
        return processes.is_alive(self.shim_pid, self.shim_ticks, self.boot_id)


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How a pod ended; written when none of its processes is left. `exit_code` None: unknown; `signal`: that ended
    the command, 0 if none; `errno`: why the command could not be started, else 0."""

    reason: str
    exit_code: int | None
    signal: int
    errno: int
    finished_ms: int


class PodDir:
    """The directory of one pod. Its files are replaced atomically, so that other processes can read them at any
    time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    def create(self, prepared: Prepared, wakeup: Path) -> bool:
        """Create the directory with the files for shim and engine, atomically. Return False, without a change, if it
        exists. `wakeup`: the pipe that the shim writes to when the pod starts or ends. Raise OSError if the disk is
        full."""
        # Written under a hidden name and renamed, so that no reader sees a directory without its files.
        fresh = self.path.with_name(f".{self.name}.{prepared.token[:8]}")
        fresh.mkdir(mode=0o700)
        stored = {**asdict(prepared), "ports": {str(k): v for k, v in prepared.ports.items()}}
        try:
            (fresh / SPEC).write_text(json.dumps(stored))
            (fresh / LAUNCH).write_bytes(_launch(prepared, wakeup))
            if prepared.spec.is_elastic:
                (fresh / ELASTIC).mkdir(mode=0o700)
                (fresh / ELASTIC / WAKEUP).symlink_to(wakeup)
            fresh.rename(self.path)
        except OSError:
            shutil.rmtree(fresh)
            if self.path.exists():
                # Another start or a stop has created it first.
                return False
            # The disk is full.
            raise
        return True

    def remove(self) -> None:
        """Remove the directory atomically, and what interrupted creations and removals left. Does nothing if there is
        none."""
        hidden = self.path.with_name(f".{self.name}.removed")
        for left in self.path.parent.glob(f".{self.name}.*"):
            shutil.rmtree(left)
        if self.path.exists():
            self.path.rename(hidden)
            shutil.rmtree(hidden)

    def prepared(self) -> Prepared | None:
        stored = self._read_json(SPEC)
        if stored is None:
            return None
        spec = stored["spec"]
        shares = tuple(DeviceShare(**share) for share in spec["devices"])
        sequences = {name: tuple(spec[name]) for name in ("command", "args", "ports")}
        mounts = tuple(Mount(*mount) for mount in spec.get("mounts", ()))
        code = CodeSource(**spec["code"]) if spec.get("code") else None
        # Files of older versions have no gang.
        gang = tuple(
            GangMember(**{**member, "devices": tuple(member["devices"])})
            for member in spec.get("launches", ())
        )
        return Prepared(
            spec=PodSpec(
                **{**spec, **sequences, "devices": shares, "launches": gang, "mounts": mounts, "code": code}
            ),
            argv=tuple(stored["argv"]),
            env=stored["env"],
            work_dir=stored["work_dir"],
            ports={int(declared): port for declared, port in stored["ports"].items()},
            log_most_bytes=stored.get("log_most_bytes", 0),
            preload=tuple(stored.get("preload", ())),
        )

    def exchange(self, membership: str) -> MemberReport:
        """Write `membership` to the membership file if it differs ("" leaves it unchanged), and return the pod's
        status report, empty if there is none."""
        shared = self.path / ELASTIC
        if membership and shared.is_dir():
            given, _ = read_shared(shared / MEMBERSHIP, len(membership) + 1)
            if given != membership:
                self._write(f"{ELASTIC}/{MEMBERSHIP}", membership)
        said, beat = read_shared(shared / STATUS, LONGEST_STATUS)
        return MemberReport(said, max(0.0, time.time() - beat)) if beat else MemberReport()

    def start_record(self) -> StartRecord | None:
        stored = self._read_json(START)
        return None if stored is None else StartRecord(**stored)

    def exit_record(self) -> ExitRecord | None:
        stored = self._read_json(EXIT)
        return None if stored is None else ExitRecord(**stored)

    def write_exit(self, record: ExitRecord) -> None:
        self._write(EXIT, json.dumps(asdict(record)))

    def stop_grace_seconds(self) -> float | None:
        text = self._read(STOP)
        return None if text is None else float(text)

    def stop_age_seconds(self, now: float) -> float:
        return now - (self.path / STOP).stat().st_mtime

    def request_stop(self, grace_seconds: float) -> None:
        """Ask the pod's shim to end the pod: SIGTERM now, SIGKILL after `grace_seconds`. A shim that starts
        later finds the request. A pod that was never created is then never started. Without effect on a pod
        that has ended."""
        # For a pod that was never created too: a start that arrives later finds the directory and starts
        # nothing.
        self.path.mkdir(mode=0o700, exist_ok=True)
        self._write(STOP, str(grace_seconds))
        try:
            fd = os.open(self.path / CONTROL, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            # The shim has not started yet, or has ended.
            return
        try:
            # The pod has ended since.
            with suppress(BrokenPipeError):
                os.write(fd, b"s")
        finally:
            os.close(fd)

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Context manager that yields True if it holds the pod's lock: no shim lives, and none starts inside the
        block. False if a shim or another such block holds it."""
        fd = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text()
        except FileNotFoundError:
            return None

    def _read_json(self, name: str) -> dict[str, Any] | None:
        text = self._read(name)
        return None if text is None else json.loads(text)

    def _write(self, name: str, text: str) -> None:
        target = self.path / name
        fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with open(fresh, "w") as file:
                file.write(text)
                # Flushed before the rename, so that a power cut leaves no empty file under the final name.
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # The disk is full.
            fresh.unlink(missing_ok=True)
            raise
        fresh.replace(target)


def own_mounts(spec: PodSpec) -> list[Mount]:
    """Return the mounts that need a mount namespace: all but writable directories that are mounted at their own
    path."""
    return [mount for mount in spec.mounts if mount.is_read_only or mount.source != mount.path]


def read_shared(path: Path, most: int) -> tuple[str, float]:
    """Return (first `most` bytes as text, modification time in Unix seconds) of a file that a pod can replace; ("",
    0.0) if it is no regular file. Never blocks, unlike opening a named pipe."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return "", 0.0
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return "", 0.0
        return os.read(fd, most).decode(errors="replace"), found.st_mtime
    finally:
        os.close(fd)


def _launch(prepared: Prepared, wakeup: Path) -> bytes:
    """Return the content of the shim's input file (see `shim.Launch`). NUL separates values, because arguments and
    variables cannot contain it."""
    items = [f"work={prepared.work_dir}", f"log={prepared.spec.log_path}", f"wakeup={wakeup}"]
    items += [f"log_most_bytes={prepared.log_most_bytes}"]
    for mount in own_mounts(prepared.spec):
        items += [
            f"bind_from={mount.source}",
            f"bind_{'read_only' if mount.is_read_only else 'to'}={mount.path}",
        ]
    items += [f"argv={argument}" for argument in prepared.argv]
    items += [f"env={name}={value}" for name, value in prepared.env.items()]
    return os.fsencode("".join(f"{item}\0" for item in items))
