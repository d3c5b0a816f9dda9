"""The four-team scenario: twenty steps, and the expected state after each.

Two nodes of eight GPUs. Quotas: team-a 4, team-b 2, team-c 2, team-d 8; over-quota weight = quota. Interactive
jobs cannot be preempted and stay inside quota; training jobs can be preempted. `4|2` in expected.csv: one of the
two, if the other project has the other. Node names are not checked. The same steps run through the scheduler
alone, the database and REST: a driver performs a step, waits until the cluster is quiet, and passes an
`Observed`."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
TEAMS = {"team-a": 4, "team-b": 2, "team-c": 2, "team-d": 8}
NODES = {"dgx1-1": 8, "dgx1-2": 8}
INTERCHANGEABLE = frozenset({"b-4-gg", "c-4-gg"})


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a user. A submission has one job; `gpus` is None for a deletion, which may have several jobs."""

    seq: int
    action: Literal["submit", "delete"]
    jobs: tuple[str, ...]
    project: str
    kind: Literal["interactive", "train"] | None
    gpus: float | None


@dataclass(frozen=True, slots=True)
class Expected:
    """One row of expected.csv. `allocated`: the allowed numbers of GPUs by project."""

    seq: int
    allocated: dict[str, tuple[float, ...]]
    physical_gpus_used: int
    running: int
    preempted: str
    waiting: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The cluster after a step. Jobs are given by name.

    `allocated`: GPUs by project. `preempted`: jobs preempted since the step before. `waiting`: queued jobs."""

    allocated: dict[str, float]
    physical_gpus_used: int
    running: int
    preempted: frozenset[str]
    waiting: frozenset[str]


def steps() -> list[Step]:
    with (HERE / "events.csv").open(newline="") as file:
        return [_step(row) for row in csv.DictReader(file)]


def expectations() -> dict[int, Expected]:
    """Return the expected state after each step, by the step's number."""
    with (HERE / "expected.csv").open(newline="") as file:
        return {int(row["after_seq"]): _expected(row) for row in csv.DictReader(file)}


def assert_step(expected: Expected, observed: Observed, preempted_before: Iterable[str] = ()) -> None:
    """Assert that the observed state is the expected one. `preempted_before`: all jobs preempted in earlier
    steps, for "the other of the two" in expected.csv."""
    where = f"after step {expected.seq}"
    for project, allowed in expected.allocated.items():
        assert _is_in(observed.allocated[project], allowed), f"{where}: {project} holds {observed.allocated}"
    choices = [values for values in expected.allocated.values() if len(values) > 1]
    if choices:
        held = sorted(
            observed.allocated[name] for name, values in expected.allocated.items() if len(values) > 1
        )
        assert held == sorted(choices[0]), f"{where}: one of each, not {held}"
    assert observed.physical_gpus_used == expected.physical_gpus_used, (
        f"{where}: {observed.physical_gpus_used} in use"
    )
    assert observed.running == expected.running, f"{where}: {observed.running} running"
    before = frozenset(preempted_before)
    _assert_preempted(expected, observed, before, where)
    waiting = observed.preempted if expected.waiting == "the victim" else frozenset(expected.waiting.split())
    assert observed.waiting == waiting, f"{where}: {sorted(observed.waiting)} wait, not {sorted(waiting)}"


def _assert_preempted(expected: Expected, observed: Observed, before: frozenset[str], where: str) -> None:
    victims = observed.preempted
    if expected.preempted.startswith("exactly one of"):
        assert len(victims) == 1, f"{where}: one victim, not {sorted(victims)}"
        assert victims <= INTERCHANGEABLE, f"{where}: {sorted(victims)} preempted"
    elif expected.preempted.startswith("the other of"):
        assert victims == INTERCHANGEABLE - before, (
            f"{where}: {sorted(victims)} preempted after {sorted(before)}"
        )
    else:
        assert not victims, f"{where}: nobody should lose a GPU, and {sorted(victims)} did"


def _is_in(gpus: float, allowed: tuple[float, ...]) -> bool:
    return any(abs(gpus - value) < 0.0005 for value in allowed)


def _step(row: dict[str, str]) -> Step:
    action: Literal["submit", "delete"] = "delete" if row["action"] == "delete" else "submit"
    kind: Literal["interactive", "train"] | None = None
    if action == "submit":
        kind = "interactive" if row["type"] == "interactive" else "train"
    gpus = float(row["gpus"]) if row["gpus"] else None
    return Step(int(row["seq"]), action, tuple(row["job"].split()), row["project"], kind, gpus)


def _expected(row: dict[str, str]) -> Expected:
    allocated = {
        team: tuple(float(value) for value in row[team.replace("-", "_")].split("|")) for team in TEAMS
    }
    return Expected(
        seq=int(row["after_seq"]),
        allocated=allocated,
        physical_gpus_used=int(row["physical_gpus_used"]),
        running=int(row["running"]),
        preempted=row["preempted_at_this_step"],
        waiting=row["pending_after"],
    )
