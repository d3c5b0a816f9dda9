"""Learn run times from earlier jobs: those of the same project, user, image and size first, then less alike ones.

Pure. A declared run time is never replaced; seconds throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Earlier jobs from which something can be learned, and how many of the latest count.
LEAST_RUNS, MOST_RUNS = 3, 50
# Of the sorted run times, in thousandths: the expected one, that of a job that ends early, of one that ends late.
EXPECTED, EARLY, LATE = 500, 50, 950


class Run(NamedTuple):
    """What a job was, and for how many seconds it ran. `size`: milli-GPUs over all pods."""

    project: str
    user: str
    image: str
    size: int
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class RunTime:
    """What earlier jobs say of a run time: quantiles, the number of them, and what they had in common with it."""

    expected: int
    early: int
    late: int
    runs: int
    same: tuple[str, ...]


# The most alike first. A project's jobs of another user, image and size say nothing.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("project", "user", "image", "size"),
    ("project", "user", "image"),
    ("project", "image", "size"),
    ("project", "user", "size"),
)


class RunTimes:
    """Run times of earlier jobs, newest first."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._seconds: Mapping[tuple[str, ...], dict[tuple[object, ...], list[int]]] = {
            level: {} for level in LEVELS
        }
        for run in runs:
            for level, known in self._seconds.items():
                alike = known.setdefault(_key(run, level), [])
                if len(alike) < MOST_RUNS:
                    alike.append(run.seconds)

    def learned(self, run: Run) -> RunTime | None:
        """Return the run time of the jobs most alike; None if fewer than LEAST_RUNS are."""
        for level, known in self._seconds.items():
            seconds = sorted(known.get(_key(run, level), ()))
            if len(seconds) >= LEAST_RUNS:
                expected, early, late = (_quantile(seconds, part) for part in (EXPECTED, EARLY, LATE))
                return RunTime(expected, early, late, len(seconds), level)
        return None


def _key(run: Run, level: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(getattr(run, name) for name in level)


def _quantile(ascending: list[int], thousandths: int) -> int:
    return max(1, ascending[(len(ascending) - 1) * thousandths // 1000])
