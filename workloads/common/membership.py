"""The two files through which an elastic job's workers and the owner of its membership communicate.

The owner (Trainyard, or a test) replaces `membership.json`: a generation number and the members in rank
order. Each worker replaces `status.json`: its address, the generation in which it trains, and the cost of
each switch. Generations have a single writer and only increase, so no two groups can train under the same
number. Imports no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DIRECTORY = "TRAINYARD_ELASTIC_DIR"
MEMBERSHIP, STATUS, WAKEUP = "membership.json", "status.json", "wakeup"
SWITCHES_KEPT = 20

# Ready, waits for a generation that includes it.
READY = "ready"
TRAINING = "training"
# Lost peers; waits for the next generation.
BROKEN = "broken"
LEFT = "left"


@dataclass(frozen=True, slots=True)
class Member:
    """A worker by its permanent number, and the address of its store: `host:port`."""

    id: int
    address: str


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of one generation, in rank order. `loss`: the newest generation that was formed because its
    predecessor lost a member, 0 for none; collective calls of earlier generations never complete."""

    generation: int
    members: tuple[Member, ...]
    loss: int = 0

    def rank_of(self, member: int) -> int | None:
        """Return the rank of a member, None if it is not one."""
        return next((rank for rank, one in enumerate(self.members) if one.id == member), None)


@dataclass(frozen=True, slots=True)
class Switch:
    """The cost of one change of generation. `step`: completed steps at that time. `lost_steps`: completed steps that
    no member had any more. `repeated_steps`: completed steps that were computed again. `interrupted_steps`: steps
    interrupted by a failure and run again in the new generation. `pause_seconds`: the time from this worker's last
    step in the old generation until it could continue. `at`: Unix seconds. `is_planned`: not caused by a failure."""

    generation: int
    step: int
    workers: int
    at: float
    pause_seconds: float
    lost_steps: int = 0
    repeated_steps: int = 0
    interrupted_steps: int = 0
    is_planned: bool = True


@dataclass(slots=True)
class Status:
    """A worker's own report. `address`: host:port of its store. `busy_seconds`: mean time per step without waiting for
    others. `epochs_exact`: how many of the `epochs_done` epochs used every sample exactly once. `is_stuck`: it is
    BROKEN, and no generation has followed for a while, so its peers may still wait for it."""

    id: int
    address: str
    state: str = READY
    generation: int = 0
    step: int = 0
    busy_seconds: float = 0.0
    epochs_done: int = 0
    epochs_exact: int = 0
    is_stuck: bool = False
    switches: list[Switch] = field(default_factory=list)


class Mailbox:
    """The directory in which one worker exchanges files with the owner."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: tuple[int, int] | None = None
        self._membership: Membership | None = None

    def membership(self) -> Membership | None:
        """Return the newest membership, None before the first. Costs one `stat` while nothing has changed."""
        try:
            found = os.stat(self._directory / MEMBERSHIP)
        except FileNotFoundError:
            return None
        mark = (found.st_ino, found.st_mtime_ns)
        if mark != self._seen:
            newest = read_membership(json.loads((self._directory / MEMBERSHIP).read_text()))
            if self._membership is None or newest.generation > self._membership.generation:
                self._membership = newest
            self._seen = mark
        return self._membership

    def publish(self, membership: Membership) -> None:
        """Replace the membership file (called by its owner)."""
        replace_file(self._directory / MEMBERSHIP, json.dumps(asdict(membership)))

    def report(self, status: Status, *, is_urgent: bool = True) -> None:
        """Replace the status file. `is_urgent`: also notify the owner through its named pipe, if there is one;
        else the owner finds the change when it next polls."""
        status.switches = status.switches[-SWITCHES_KEPT:]
        replace_file(self._directory / STATUS, json.dumps(asdict(status)))
        if is_urgent:
            self._notify()

    def beat(self) -> None:
        """Set the status file's time to now, as a heartbeat."""
        try:
            os.utime(self._directory / STATUS)
        except FileNotFoundError:
            # The pod's directory is being removed.
            pass

    def status(self) -> Status | None:
        """Return the last status that the worker wrote; None before the first. Raises as `read_status`, and ValueError
        if the file is no JSON."""
        try:
            return read_status(json.loads((self._directory / STATUS).read_text()))
        except FileNotFoundError:
            return None

    def _notify(self) -> None:
        try:
            wakeup = os.open(self._directory / WAKEUP, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            # No pipe, or no listener: the owner also polls.
            return
        try:
            os.write(wakeup, b".")
        except BlockingIOError:
            # Full: a notification is pending already.
            pass
        finally:
            os.close(wakeup)


def read_membership(data: Mapping[str, Any]) -> Membership:
    """Return the membership from the parsed JSON of a membership file. Raises KeyError, TypeError or ValueError for a
    malformed one."""
    members = tuple(Member(**member) for member in data["members"])
    return Membership(int(data["generation"]), members, int(data.get("loss", 0)))


def read_status(data: Mapping[str, Any]) -> Status:
    """Return the status from the parsed JSON of a status file. Raises KeyError or TypeError for a malformed one."""
    return Status(**{**data, "switches": [Switch(**switch) for switch in data["switches"]]})


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: readers see either the old or the new text."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)
