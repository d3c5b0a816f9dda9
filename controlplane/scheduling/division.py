"""Divide GPUs among elastic jobs: which one grows, how far, and which gives workers to one that gains more. Pure.

A doubling is worth the speed that it adds per GPU, in relation to the speed that the job has; and it is worth more in a
job with little work left, whose end frees GPUs for all that then still run: by the square root of how many those are
(as heSRPT, Berg et al. 2020, for curves that are powers). bench/elastic_trace.py shows what this reaches on a real
trace.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.scheduling.sizes import largest_size

# Of a job that declares no speeds: twice the workers are 1.7 times as fast.
USUAL_EXPONENT = 0.75
# For a job that does not report how long it will take.
UNKNOWN_SECONDS = 86_400.0
# A job is taken to outlast so many more than do run: others will come.
EXPECTED = 2
# By how much more a move must gain than it costs, and what the job that gets the workers must save at least.
ADVANTAGE, LEAST_SAVED_SECONDS = 1.25, 60.0
MOST_MOVES = 8


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that has `workers` and may have `fewest` to `most`, of them `sizes` where there are some; `workers` 0: it
    waits for its fewest. `speeds`: (workers, measured speed in any unit), ascending, () for unknown. `left_seconds`:
    until its end as it is now, None for unknown. `shape`: what a worker needs, GPUs first, each in any unit. Workers go
    to jobs of the same `pool` and of no lower `priority`, and only from jobs that may give."""

    job: str
    workers: int
    fewest: int
    most: int
    sizes: tuple[int, ...] = ()
    speeds: tuple[tuple[int, float], ...] = ()
    left_seconds: float | None = None
    shape: tuple[int, ...] = (1,)
    pool: object = None
    priority: int = 0
    may_give: bool = True

    def speed(self, workers: int) -> float:
        """Return its speed with so many workers: between measured sizes a power, beyond the largest no faster."""
        if not self.speeds:
            return float(workers**USUAL_EXPONENT)
        place = bisect_left(self.speeds, (workers, 0.0))
        if place == len(self.speeds):
            return self.speeds[-1][1]
        above, fast = self.speeds[place]
        if above == workers:
            return fast
        if place == 0:
            return float(fast * (workers / above) ** USUAL_EXPONENT)
        below, slow = self.speeds[place - 1]
        return float(slow * (fast / slow) ** (math.log(workers / below) / math.log(above / below)))

    @property
    def left_alone(self) -> float:
        """Seconds until its end with one worker."""
        left = UNKNOWN_SECONDS if self.left_seconds is None else self.left_seconds
        return left * self.speed(max(1, self.workers)) / self.speed(1)


def next_size(sizes: Sequence[int], workers: int, most: int) -> int:
    """Return the size, at most `most`, to which a job of so many workers grows while others want to grow, too: twice as
    many, or the next allowed size beyond; `workers` if there is none."""
    doubled = largest_size(sizes, min(2 * workers, most))
    if doubled > workers:
        return doubled
    return next((size for size in sizes if workers < size <= most), workers)


def in_turn(claims: Iterable[Claim], free: int) -> list[tuple[Claim, int]]:
    """Return the jobs that would grow into so many free GPUs, in this order, each with the workers that it would
    have."""
    division = _Division(claims, free)
    division.grow()
    return [(claim, division.workers[claim.job]) for claim in division.grown]


def after_moves(claims: Iterable[Claim], free: int) -> Mapping[str, int]:
    """Return how many workers each job has once workers have moved to waiting jobs and to those that gain more by
    them, by job."""
    division = _Division(claims, free)
    division.serve_waiting()
    division.grow()
    # Each move is one for the better; measured speeds with bumps could still lead around in a circle.
    for _ in range(MOST_MOVES * len(division.workers)):
        if not division.move():
            break
        division.grow()
    return division.workers


class _Division:
    """A division that is being made."""

    def __init__(self, claims: Iterable[Claim], free: int) -> None:
        self._claims = sorted(claims, key=lambda claim: claim.job)
        self._free = free
        self.workers = {claim.job: claim.workers for claim in self._claims}
        self.grown: list[Claim] = []
        self._weights = _weights(self._claims)

    def grow(self) -> None:
        """Give what is free, the best doubling first."""
        while (best := next(self._affordable(), None)) is not None:
            claim, to = best
            self._set(claim, to)
            if claim not in self.grown:
                self.grown.append(claim)

    def serve_waiting(self) -> None:
        """Free what waiting jobs lack, if others can give that much."""
        for claim in self._claims:
            if claim.workers:
                continue
            givers = self._givers(claim, claim.fewest, math.inf)
            if givers is not None:
                self._take(givers, claim, claim.fewest)

    def move(self) -> bool:
        """Make the best move that is worth it. Returns whether there was one."""
        for claim, to in self._steps():
            if self._saved(claim, to) < LEAST_SAVED_SECONDS:
                continue
            givers = self._givers(claim, to, self._value(claim, self.workers[claim.job], to) / ADVANTAGE)
            if givers is not None:
                self._take(givers, claim, to)
                return True
        return False

    def _steps(self) -> list[tuple[Claim, int]]:
        """Each job's next step, the best first."""
        found = []
        for claim in self._claims:
            has = self.workers[claim.job]
            to = next_size(claim.sizes, has, claim.most) if has else 0
            if to > has and (worth := self._value(claim, has, to)) > 0:
                found.append((-worth, claim.job, claim, to))
        return [(claim, to) for _, _, claim, to in sorted(found, key=lambda one: one[:2])]

    def _affordable(self) -> Iterator[tuple[Claim, int]]:
        for claim, to in self._steps():
            has, each = self.workers[claim.job], claim.shape[0]
            fits = to if not each else min(to, has + self._free // each)
            if (size := largest_size(claim.sizes, fits)) > has:
                yield claim, size

    def _givers(self, taker: Claim, to: int, below: float) -> list[tuple[Claim, int]] | None:
        """Return who gives, and to what size each shrinks, so that the taker has what it lacks; None if too few lose
        less than `below`."""
        lacks = (to - self.workers[taker.job]) * taker.shape[0] - self._free
        found: list[tuple[Claim, int]] = []
        has = dict(self.workers)
        for _, _, giver, size in sorted(self._offers(taker, lacks, below), key=lambda one: one[:2]):
            if lacks <= 0:
                break
            found.append((giver, size))
            lacks -= (has[giver.job] - size) * giver.shape[0]
            has[giver.job] = size
        return found if lacks <= 0 else None

    def _offers(self, taker: Claim, lacks: int, below: float) -> Iterator[tuple[float, str, Claim, int]]:
        for giver in self._claims:
            if giver is taker or not _can_give(giver, taker):
                continue
            has, needed, worth = self.workers[giver.job], math.ceil(lacks / giver.shape[0]), 0.0
            while True:
                # At most half of what it has, so that what it loses is that of one doubling; then of what is left.
                size = largest_size(giver.sizes, max(has - needed, has // 2, giver.fewest))
                if not giver.fewest <= size < has:
                    break
                # Never less than the workers before were worth, so that they go in this order.
                worth = max(worth, self._value(giver, size, has))
                if worth >= below:
                    break
                yield worth, giver.job, giver, size
                needed, has = needed - (has - size), size

    def _take(self, givers: Iterable[tuple[Claim, int]], taker: Claim, to: int) -> None:
        for giver, size in givers:
            self._set(giver, size)
        self._set(taker, to)

    def _set(self, claim: Claim, workers: int) -> None:
        self._free -= (workers - self.workers[claim.job]) * claim.shape[0]
        self.workers[claim.job] = workers

    def _value(self, claim: Claim, small: int, large: int) -> float:
        slow, alone = claim.speed(small), claim.speed(1)
        gained = (claim.speed(large) - slow) / math.sqrt(slow * alone)
        return gained / ((large - small) * max(1, claim.shape[0])) * self._weights[claim.job]

    def _saved(self, claim: Claim, to: int) -> float:
        has = self.workers[claim.job]
        return claim.left_alone * claim.speed(1) * (1 / claim.speed(has) - 1 / claim.speed(to))


def _weights(claims: Collection[Claim]) -> dict[str, float]:
    """Return by job the root of how many outlast it."""
    longest = sorted(claims, key=lambda claim: (-claim.left_alone, claim.job))
    return {claim.job: math.sqrt(EXPECTED + place) for place, claim in enumerate(longest, 1)}


def _can_give(giver: Claim, taker: Claim) -> bool:
    """Whether a worker of the taker has room where one of the giver ran."""
    has_room = all(needs <= has for needs, has in zip(taker.shape, giver.shape, strict=True))
    is_alike = giver.pool == taker.pool and giver.priority <= taker.priority
    return giver.may_give and giver.shape[0] > 0 and has_room and is_alike
