"""Write nothing while a snapshot of a volume is taken, so that it contains only complete files.

For a snapshot the control plane writes VOLUME/.trainyard/quiesce with the snapshot's id. A participating
program has a file in VOLUME/.trainyard/listening; it copies the id into it as soon as no write is in
progress, and writes nothing until `quiesce` is removed. Training continues meanwhile: only `writing` waits.
Imports no torch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workloads.common import stopping

# Variable with the mount paths of the job's writable volumes, separated by colons.
VOLUMES = "TRAINYARD_VOLUMES"
POLL_SECONDS = 0.1
# A longer wait is ended: the control plane must have died during a snapshot.
LONGEST_SECONDS = 900.0
# After SIGTERM a checkpoint matters more than the snapshot: the kill follows 10 s later.
LONGEST_STOPPING_SECONDS = 3.0

_writes = threading.Lock()
_listeners: list[Path] = []
# Requests that existed before this program started are ignored: a volume restored from a snapshot may contain
# one.
_stale: dict[Path, str] = {}


@contextmanager
def answering(is_writer: bool = True) -> Iterator[None]:
    """Context manager within which this process participates in snapshots of the job's volumes, if it has any. All
    writes to them must then be inside `writing`. `is_writer`: False for a rank that writes nothing and does not
    participate."""
    name = f"{os.environ.get('TRAINYARD_JOB_ID', '')}.{os.environ.get('TRAINYARD_RANK', '0')}"
    volumes = [Path(path) for path in os.environ.get(VOLUMES, "").split(":") if path and is_writer]
    _listeners.extend(file for volume in volumes if (file := _listen(volume, name)) is not None)
    is_over = threading.Event()
    thread = threading.Thread(target=_answer, args=(is_over,), name="quiesce", daemon=True)
    if _listeners:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        if thread.ident is not None:
            thread.join()
        _withdraw()


@contextmanager
def writing() -> Iterator[None]:
    """Context manager around writes to volumes: a snapshot waits for its end. It first waits for a snapshot that
    is being taken. If that takes too long, this program stops participating, and the snapshot counts as
    crash-consistent."""
    began = time.monotonic()
    is_held = _writes.acquire(timeout=POLL_SECONDS)
    while not is_held and time.monotonic() - began < _lock_seconds():
        is_held = _writes.acquire(timeout=POLL_SECONDS)
    if not is_held:
        _withdraw()
    try:
        yield
    finally:
        if is_held:
            _writes.release()


def _lock_seconds() -> float:
    return LONGEST_STOPPING_SECONDS if stopping.is_asked() else LONGEST_SECONDS


def _listen(volume: Path, name: str) -> Path | None:
    """Create and return this program's file `name` in a volume; None if it cannot be created."""
    file = volume / ".trainyard" / "listening" / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    except OSError:
        return None
    _stale[file] = _requested(file)
    return file


def _withdraw() -> None:
    for file in _listeners:
        with suppress(OSError):
            file.unlink()
    _listeners.clear()


def _answer(is_over: threading.Event) -> None:
    while not is_over.wait(POLL_SECONDS):
        asked = {file: token for file in tuple(_listeners) if (token := _request(file))}
        if asked:
            _pause(asked, is_over)


def _pause(asked: dict[Path, str], is_over: threading.Event) -> None:
    with _writes:
        # The snapshot may have been abandoned while a write held the lock.
        asked = {file: token for file, token in asked.items() if _request(file) == token}
        _reply(asked)
        until = time.monotonic() + LONGEST_SECONDS
        while any(_request(file) == token for file, token in asked.items() if file in _listeners):
            if is_over.wait(POLL_SECONDS):
                return
            if time.monotonic() > until:
                _withdraw()
        # Remove the answer, so that it does not count for a repeated snapshot with the same id.
        _reply(dict.fromkeys(asked, ""))


def _reply(answers: dict[Path, str]) -> None:
    for file, text in answers.items():
        if file in _listeners:
            with suppress(OSError):
                file.write_text(text)


def _request(file: Path) -> str:
    """Return the id of the snapshot that is being taken of the file's volume, "" if there is none. A request that was
    there before this program began counts as none."""
    found = _requested(file)
    return "" if found == _stale.get(file) else found


def _requested(file: Path) -> str:
    try:
        return (file.parent.parent / "quiesce").read_text().strip()
    except OSError:
        return ""
