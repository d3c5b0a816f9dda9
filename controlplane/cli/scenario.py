"""The four-team scenario as data: twenty submissions and deletions, and where each of them should leave the cluster."""

from __future__ import annotations

import csv
import os
from typing import NamedTuple

# The published teams under names of their own: a team-a of the people who use the server is not the demo's.
PREFIX = "demo-"
_PUBLISHED_QUOTAS = {"team-a": 4, "team-b": 2, "team-c": 2, "team-d": 8}
QUOTAS = {PREFIX + team: quota for team, quota in _PUBLISHED_QUOTAS.items()}
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scenarios")


class Step(NamedTuple):
    """One thing that a team does. `jobs` has several names in a deletion; `gpus` is 0 there."""

    number: int
    action: str
    jobs: tuple[str, ...]
    project: str
    kind: str
    gpus: float


class Expected(NamedTuple):
    """Where the cluster stands after a step. `allocated` lists every acceptable division over QUOTAS' projects."""

    allocated: tuple[tuple[float, ...], ...]
    physical_gpus: int
    running: int


def steps() -> list[Step]:
    """Return the twenty steps in order."""
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
    """Return what should hold after each step, by its number."""
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
    """`4 | 2|4 | 4|2 | 6` stands for two divisions: the first alternatives together, or the second ones."""
    options = [cell.split("|") for cell in cells]
    count = max(map(len, options))
    return tuple(
        tuple(float(option[min(pick, len(option) - 1)]) for option in options) for pick in range(count)
    )
