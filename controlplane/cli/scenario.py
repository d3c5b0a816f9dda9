"""The four-team scenario as data: twenty submissions and deletions, and the expected allocation after each."""

from __future__ import annotations

import csv
import os
from typing import NamedTuple

# The published teams under other names, since a user's own project may be called team-a.
PREFIX = "demo-"
_PUBLISHED_QUOTAS = {"team-a": 4, "team-b": 2, "team-c": 2, "team-d": 8}
QUOTAS = {PREFIX + team: quota for team, quota in _PUBLISHED_QUOTAS.items()}
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scenarios")


class Step(NamedTuple):
    """One action of a team. `action`: submit or delete; `jobs`: the names of the jobs; `gpus`: per job, 0 for a
    deletion."""

    number: int
    action: str
    jobs: tuple[str, ...]
    project: str
    kind: str
    gpus: float


class Expected(NamedTuple):
    """The expected state after a step. `allocated`: every acceptable division of the GPUs, each in the order of
    QUOTAS; `physical_gpus`: devices in use; `running`: running jobs."""

    allocated: tuple[tuple[float, ...], ...]
    physical_gpus: int
    running: int


def steps() -> list[Step]:
    """Return the scenario's twenty steps, in order."""
    return [
        Step(
            int(row["seq"]),
            row["action"],
            tuple(row["job"].split()),
            PREFIX + row["project"],
            row["type"],
            float(row["gpus"] or 0),
        )
        for row in _rows("four_teams.csv")
    ]


def expectations() -> dict[int, Expected]:
    """Return the expected state after each step, by the step's number."""
    return {
        int(row["after_seq"]): Expected(
            _divisions([row[team.replace("-", "_")] for team in _PUBLISHED_QUOTAS]),
            int(row["physical_gpus_used"]),
            int(row["running"]),
        )
        for row in _rows("four_teams_expected.csv")
    }


def _rows(name: str) -> list[dict[str, str]]:
    with open(os.path.join(_FOLDER, name), encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _divisions(cells: list[str]) -> tuple[tuple[float, ...], ...]:
    """Return the divisions of GPUs that one line of the file allows. Cells `4`, `2|4`, `4|2`, `6` give two: the first
    alternatives together, and the second ones."""
    options = [cell.split("|") for cell in cells]
    count = max(map(len, options))
    return tuple(
        tuple(float(option[min(pick, len(option) - 1)]) for option in options) for pick in range(count)
    )
