"""Divide GPUs among elastic jobs: decide which one grows, to what size, and which one loses workers to a job that
gains more by them. Pure.

The value of growing a job is its gain in speed per added GPU, divided by sqrt(current speed x speed with one worker),
times sqrt(n). n is the job's rank by remaining time on one worker (the longest is 1) plus EXPECTED. This favours short
jobs, whose end frees GPUs for the others (heSRPT, Berg et al. 2020, for power-law speed-ups). bench/elastic_trace.py
measures the effect on a recorded trace.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.scheduling.sizes import largest_size

# The speed of a job that declares none is workers ** USUAL_EXPONENT: twice the workers are 1.7 times as fast.
USUAL_EXPONENT = 0.75
# The assumed remaining time of a job that does not report it.
UNKNOWN_SECONDS = 86_400.0
# Added to each job's rank, because jobs that have not been submitted yet will also wait for GPUs.
EXPECTED = 2
# Workers move to another job only if its gain is at least ADVANTAGE times the loss, and if it ends at least
# LEAST_SAVED_SECONDS earlier.
ADVANTAGE, LEAST_SAVED_SECONDS = 1.25, 60.0
MOST_MOVES = 8


@dataclass(frozen=True, slots=True)
class Claim:
    """An elastic job that competes for GPUs. `workers`: how many it has; 0 while it waits for `fewest`. It may have
    `fewest` to `most` workers, and only `sizes` unless that is empty. `speeds`: (workers, measured speed in any unit),
    ascending, () if unknown. `left_seconds`: remaining time with `workers`, None if unknown. `shape`: what one worker
    needs: GPUs, then other resources in any unit. `pool`: jobs exchange workers only if theirs are equal. `priority`:
    a job loses no workers to one of lower priority, and none at all without `may_give`."""

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
        """Return its speed with `workers`, in the unit of `speeds`: between measured sizes interpolated by a power law,
        beyond the largest no faster."""
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
        """Return its remaining time with one worker, in seconds."""
        left = UNKNOWN_SECONDS if self.left_seconds is None else self.left_seconds
        return left * self.speed(max(1, self.workers)) / self.speed(1)


def next_size(sizes: Sequence[int], workers: int, most: int) -> int:
    """Return the size to which a job with `workers` grows in one step, so that several jobs can grow in turn: the
    largest allowed size up to twice as many, else the next larger one; `workers` if none is at most `most`."""
    doubled = largest_size(sizes, min(2 * workers, most))
    if doubled > workers:
        return doubled
    return next((size for size in sizes if workers < size <= most), workers)


def in_turn(claims: Iterable[Claim], free: int) -> list[tuple[Claim, int]]:
    """Return (job, its new number of workers) for the jobs that grow into `free` GPUs, in the order of their first
    growth."""
    division = _Division(claims, free)
    division.grow()
    return [(claim, division.workers[claim.job]) for claim in division.grown]


def after_moves(claims: Iterable[Claim], free: int) -> Mapping[str, int]:
    """Return the number of workers of each job, by its id, after `free` GPUs are used and workers have moved to waiting
    jobs and to jobs that gain more by them."""
    division = _Division(claims, free)
    division.serve_waiting()
    division.grow()
    # Each move is an improvement, but with irregular measured speeds moves could still repeat in a cycle.
    for _ in range(MOST_MOVES * len(division.workers)):
        if not division.move():
            break
        division.grow()
    return division.workers


class _Division:
    """The working state of one division. `workers`: the current number by job id; `grown`: the jobs that have grown,
    in order of their first growth."""

    def __init__(self, claims: Iterable[Claim], free: int) -> None:
        self._claims = sorted(claims, key=lambda claim: claim.job)
        self._free = free
        self.workers = {claim.job: claim.workers for claim in self._claims}
        self.grown: list[Claim] = []
        self._weights = _weights(self._claims)

    def grow(self) -> None:
        """Use the free GPUs: let the job with the highest value grow by one step, until none fits."""
        while (best := next(self._affordable(), None)) is not None:
            claim, to = best
            self._set(claim, to)
            if claim not in self.grown:
                self.grown.append(claim)

    def serve_waiting(self) -> None:
        """Give each waiting job its fewest workers, on free GPUs and on GPUs that other jobs can release, at any loss.
        A job for which these are too few stays at 0."""
        for claim in self._claims:
            if claim.workers:
                continue
            givers = self._givers(claim, claim.fewest, math.inf)
            if givers is not None:
                self._take(givers, claim, claim.fewest)

    def move(self) -> bool:
        """Let the job with the highest value grow by one step on GPUs of jobs that lose less by ADVANTAGE. Return False
        if there is no such job."""
        for claim, to in self._steps():
            if self._saved(claim, to) < LEAST_SAVED_SECONDS:
                continue
            givers = self._givers(claim, to, self._value(claim, self.workers[claim.job], to) / ADVANTAGE)
            if givers is not None:
                self._take(givers, claim, to)
                return True
        return False

    def _steps(self) -> list[tuple[Claim, int]]:
        """Return (job, size after its next step), by falling value; without jobs that wait or cannot grow."""
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
        """Return (job, the size to which it shrinks) for the jobs that release the GPUs which `taker` lacks for `to`
        workers, the smallest loss first; None if jobs with a loss below `below` cannot release enough."""
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
                # A step releases at most half of the workers, so that its loss compares with the gain of a doubling;
                # the next step halves the rest.
                size = largest_size(giver.sizes, max(has - needed, has // 2, giver.fewest))
                if not giver.fewest <= size < has:
                    break
                # A later step never counts as a smaller loss than an earlier one, so that the sort keeps their order.
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
    """Return the factor of each job's value by its id: sqrt(EXPECTED + rank), where rank 1 has the longest remaining
    time with one worker."""
    longest = sorted(claims, key=lambda claim: (-claim.left_alone, claim.job))
    return {claim.job: math.sqrt(EXPECTED + place) for place, claim in enumerate(longest, 1)}


def _can_give(giver: Claim, taker: Claim) -> bool:
    """Return whether `giver` may release workers to `taker`, and a worker of `taker` fits where one of `giver` ran."""
    has_room = all(needs <= has for needs, has in zip(taker.shape, giver.shape, strict=True))
    is_alike = giver.pool == taker.pool and giver.priority <= taker.priority
    return giver.may_give and giver.shape[0] > 0 and has_room and is_alike
