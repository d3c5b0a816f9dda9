"""Divide the GPUs of one pool among elastic jobs: which one grows, how far, and which gives workers to another. Pure.

Growth from `small` to `large` workers is worth

    (speed(large) - speed(small)) / sqrt(speed(small) * speed(1)) / GPUs added * sqrt(place + EXPECTED)

where `place` is the job's place in the order of remaining time with one worker, 1 for the longest. This favours short
jobs, whose end frees GPUs for all that outlast them (heSRPT, Berg et al. 2020, if speeds are powers of the workers).
Growth takes the most valuable step first. A move shrinks jobs by steps of which each is worth less than 1 / ADVANTAGE
of the step that the taker makes. bench/elastic_trace.py measures the effect on a recorded trace.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.scheduling.sizes import largest_size

# The speed of a job that declares none is workers ** USUAL_EXPONENT: twice the workers are 1.7 times as fast.
USUAL_EXPONENT = 0.75
# The work left, as seconds with one worker, of a job that does not report how long it will take.
UNKNOWN_SECONDS = 86_400.0
# Bounds of what users declare and programs report, so that no formula here overflows or divides by 0.
SLOWEST, FASTEST, LONGEST_SECONDS = 1e-50, 1e50, 1e9
# Added to a job's place in the order of the work left, for jobs that will be submitted and outlast it.
EXPECTED = 2
# By how much more a move must gain than it costs, and how much earlier the job that gets the workers must end.
ADVANTAGE, LEAST_SAVED_SECONDS = 1.5, 60.0
MOST_MOVES = 8


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that has `workers` and may have `fewest` to `most`; only `sizes` of these, unless empty.

    `speeds`: (workers, measured speed in any unit) in
    ascending order, () if unknown. `left_seconds`: until its end with the present workers, None if unknown. `shape`:
    what one worker needs, GPUs first, then anything in the same order for all claims. Workers move between jobs of one
    `project`, to jobs of no lower `priority`, from jobs that `may_give`."""

    job: str
    workers: int
    fewest: int
    most: int
    sizes: tuple[int, ...] = ()
    speeds: tuple[tuple[int, float], ...] = ()
    left_seconds: float | None = None
    shape: tuple[int, ...] = (1,)
    project: str = ""
    priority: int = 0
    may_give: bool = True

    def speed(self, workers: int) -> float:
        """Return its speed with so many workers, in the unit of `speeds`: between measured sizes a power of the
        workers, beyond the largest no faster."""
        return min(max(self._speed(workers), SLOWEST), FASTEST)

    def _speed(self, workers: int) -> float:
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
        """Return its remaining time with one worker, in seconds. It does not depend on the present workers, so that a
        move does not change the order by which it was chosen."""
        if self.left_seconds is None or not self.workers:
            return UNKNOWN_SECONDS
        return min(self.left_seconds, LONGEST_SECONDS) * self.speed(self.workers) / self.speed(1)


def next_size(sizes: Sequence[int], workers: int, most: int) -> int:
    """Return the size to which a job with `workers` grows in one step, so that several jobs can grow in turn: the
    largest allowed size up to twice as many, else the next larger one; `workers` if none is at most `most`."""
    doubled = largest_size(sizes, min(2 * workers, most))
    if doubled > workers:
        return doubled
    return next((size for size in sizes if workers < size <= most), workers)


def in_turn(claims: Iterable[Claim], free: int) -> list[tuple[Claim, int]]:
    """Return the jobs that would grow into so many free GPUs, in this order, each with the workers that it would
    have. `claims`: all running elastic jobs of the pool, also those that want no more, since they count in the
    weights."""
    division = _Division(claims, free)
    division.grow()
    return [(claim, division.workers[claim.job]) for claim in division.grown]


def after_moves(running: Iterable[Claim], free: int) -> Mapping[str, int]:
    """Return how many workers each job has, by job, once workers have moved to jobs that gain more by them. Only jobs
    whose remaining time is known take part; none of them does while a job of another project wants to grow."""
    claims = list(running)
    division = _Division(claims, free)
    division.grow()
    # Each move is one for the better; measured speeds with bumps could still lead around in a circle.
    for _ in range(MOST_MOVES * len(claims)):
        if not division.move():
            break
        division.grow()
    return (
        division.workers
        if _lasts(claims, division.workers, free)
        else {one.job: one.workers for one in claims}
    )


def _lasts(claims: Sequence[Claim], sizes: Mapping[str, int], free: int) -> bool:
    """Whether no giver grows back at once: growth decides by itself who gets the workers that became free."""
    shrunk = [replace(one, workers=min(one.workers, sizes[one.job]), left_seconds=None) for one in claims]
    freed = sum((one.workers - less.workers) * one.shape[0] for one, less in zip(claims, shrunk, strict=True))
    division = _Division(shrunk, free + freed, weights_of(claims))
    division.grow()
    return all(division.workers[one.job] <= sizes[one.job] for one in claims if sizes[one.job] < one.workers)


class _Division:
    """The working state of one division. `workers`: the current number by job id; `grown`: the jobs that have grown,
    in order of their first growth."""

    def __init__(
        self, claims: Iterable[Claim], free: int, weights: Mapping[str, float] | None = None
    ) -> None:
        self._claims = sorted(claims, key=lambda claim: claim.job)
        self._free = free
        self.workers = {claim.job: claim.workers for claim in self._claims}
        self.grown: list[Claim] = []
        self._weights = weights or weights_of(self._claims)

    def grow(self) -> None:
        """Give what is free, the most valuable step first."""
        while (best := next(self._affordable(), None)) is not None:
            claim, to = best
            self._set(claim, to)
            if claim not in self.grown:
                self.grown.append(claim)

    def move(self) -> bool:
        """Make the best move that is worth it. Returns whether there was one."""
        steps = self._steps()
        projects = {claim.project for claim, _ in steps}
        for claim, to in steps:
            is_allowed = claim.left_seconds is not None and projects == {claim.project}
            if not is_allowed or self._saved(claim, to) < LEAST_SAVED_SECONDS:
                continue
            has = self.workers[claim.job]
            lacks = (to - has) * claim.shape[0] - self._free
            givers = self._givers(claim, lacks, self._value(claim, has, to) / ADVANTAGE)
            if givers is not None:
                self._shrink(givers)
                self._set(claim, to)
                return True
        return False

    def _steps(self) -> list[tuple[Claim, int]]:
        """Each job's next step, the most valuable first."""
        found = []
        for claim in self._claims:
            has = self.workers[claim.job]
            to = next_size(claim.sizes, has, claim.most)
            if to > has and (worth := self._value(claim, has, to)) > 0:
                found.append((-worth, claim.job, claim, to))
        return [(claim, to) for _, _, claim, to in sorted(found, key=lambda one: one[:2])]

    def _affordable(self) -> Iterator[tuple[Claim, int]]:
        for claim, to in self._steps():
            has, each = self.workers[claim.job], claim.shape[0]
            fits = to if not each else min(to, has + self._free // each)
            if (size := largest_size(claim.sizes, fits)) > has:
                yield claim, size

    def _givers(self, taker: Claim, lacks: int, below: float) -> list[tuple[Claim, int]] | None:
        """Return who gives and to what size each shrinks, so that together they free so many GPUs; None if too few
        steps are worth less than `below`."""
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
            if giver is taker or not _can_give(giver, taker) or giver.left_seconds is None:
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

    def _shrink(self, givers: Iterable[tuple[Claim, int]]) -> None:
        for giver, size in givers:
            self._set(giver, size)

    def _set(self, claim: Claim, workers: int) -> None:
        self._free -= (workers - self.workers[claim.job]) * claim.shape[0]
        self.workers[claim.job] = workers

    def _value(self, claim: Claim, small: int, large: int) -> float:
        return gain(claim, small, large, self._weights[claim.job])

    def _saved(self, claim: Claim, to: int) -> float:
        """Seconds by which the job ends earlier."""
        has = self.workers[claim.job]
        return claim.left_alone * claim.speed(1) * (1 / claim.speed(has) - 1 / claim.speed(to))


def gain(claim: Claim, small: int, large: int, weight: float) -> float:
    """Return what growth from `small` to `large` workers is worth per GPU, and shrinking costs."""
    slow, alone = claim.speed(small), claim.speed(1)
    # Two roots, since the product of two small speeds could be 0.
    gained = (claim.speed(large) - slow) / (math.sqrt(slow) * math.sqrt(alone))
    return gained / ((large - small) * max(1, claim.shape[0])) * weight


def weights_of(claims: Collection[Claim]) -> dict[str, float]:
    """Return each job's weight: the root of its place, the job with most work left first, plus EXPECTED."""
    longest = sorted(claims, key=lambda claim: (-claim.left_alone, claim.job))
    return {claim.job: math.sqrt(EXPECTED + place) for place, claim in enumerate(longest, 1)}


def _can_give(giver: Claim, taker: Claim) -> bool:
    """Return whether `giver` may release workers to `taker`, and a worker of `taker` fits where one of `giver` ran."""
    has_room = all(needs <= has for needs, has in zip(taker.shape, giver.shape, strict=True))
    is_alike = giver.project == taker.project and giver.priority <= taker.priority
    return giver.may_give and giver.shape[0] > 0 and has_room and is_alike
