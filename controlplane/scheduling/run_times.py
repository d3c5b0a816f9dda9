"""Learn run times from earlier jobs of the same project, if possible with the same user, image and size; all in
seconds. A declared run time is never replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

# The fewest earlier jobs from which a run time is learned, and the most (the latest) that are used.
LEAST_RUNS, MOST_RUNS = 3, 50
# The quantiles, in thousandths, that are used as expected run time, for a job that ends early, and for one that
# ends late.
EXPECTED, EARLY, LATE = 500, 50, 950


class Run(NamedTuple):
    """The properties by which an earlier job is compared, and its run time in seconds. `size`: the milli-GPUs of all
    its pods."""

    project: str
    user: str
    image: str
    size: int
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class RunTime:
    """A learned run time in seconds: what is expected, and low and high quantiles (`early`, `late`). `runs`: from how
    many jobs it was learned; `same`: the properties that these share with the job."""

    expected: int
    early: int
    late: int
    runs: int
    same: tuple[str, ...]


# The most specific first. Sharing the project alone predicts nothing, so there is no such level.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("project", "user", "image", "size"),
    ("project", "user", "image"),
    ("project", "image", "size"),
    ("project", "user", "size"),
)


class RunTimes:
    """The run times of earlier jobs. `runs`: the newest first."""

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
        """Return the run time learned from the earlier jobs that share the most properties with `run` (whose
        `seconds` are ignored); at least LEAST_RUNS must share them. None if there are too few."""
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
