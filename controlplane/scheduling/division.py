"""Divide the GPUs of one pool among elastic jobs: which one grows, how far, and which shrinks for another. Pure.

Growth from `small` to `large` workers is worth

    (speed(large) - speed(small)) / sqrt(speed(small) * speed(1)) / GPUs added * sqrt(position + EXPECTED)

where `position` is the job's position in the order of remaining time with one worker, 1 for the longest. This
favours short jobs, whose end frees GPUs for all that outlast them (heSRPT, Berg et al. 2020, if speeds are
powers of the workers). The most valuable step is taken first. A job grows at the cost of others only by steps
of theirs that are each worth less than 1 / ADVANTAGE of its own step. bench/elastic_trace.py measures the
effect on a recorded trace.
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
    """One elastic job in the division. It has `workers` of them and may have `fewest` to `most`; if `sizes` is not
    empty, only these numbers.

    `speeds`: (workers, measured speed in any unit), ascending; () if unknown. `left_seconds`: until its end with the
    present workers, None if unknown. `shape`: what one worker needs: GPUs first, then other resources in the same
    order for all claims. Workers move only between jobs of one `project`, from jobs that `may_shrink`, to jobs of at
    least their `priority`.
    """

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
    may_shrink: bool = True

    def speed(self, workers: int) -> float:
        """Return the speed with this many workers, in the unit of `speeds`. Between measured sizes it follows a power
        of the workers; beyond the largest it is constant; below the smallest, and without `speeds`, it grows with
        workers ** USUAL_EXPONENT."""
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
        """The remaining time with one worker, in seconds. It does not depend on the present workers: moving some does
        not change the order by which moves are chosen."""
        if self.left_seconds is None or not self.workers:
            return UNKNOWN_SECONDS
        return min(self.left_seconds, LONGEST_SECONDS) * self.speed(self.workers) / self.speed(1)


def next_size(sizes: Sequence[int], workers: int, most: int) -> int:
    """Return the size after one step of growth: the largest allowed one up to twice `workers`, else the next larger
    one; `workers` if that exceeds `most`. Steps are bounded so that jobs grow in turn."""
    doubled = largest_size(sizes, min(2 * workers, most))
    if doubled > workers:
        return doubled
    return next((size for size in sizes if workers < size <= most), workers)


def in_turn(claims: Iterable[Claim], free: int) -> list[tuple[Claim, int]]:
    """Return the jobs that would grow into `free` GPUs, in order, each with its new number of workers. `claims`: all
    running elastic jobs of the pool; those at full size affect the weights too."""
    division = _Division(claims, free)
    division.grow()
    return [(claim, division.workers[claim.job]) for claim in division.grown]


def after_moves(running: Iterable[Claim], free: int) -> Mapping[str, int]:
    """Return each job's number of workers after growth into `free` GPUs and after moves of workers to jobs that gain
    more by them; the present numbers, even without growth, if later growth would undo the moves.

    Only jobs with a known remaining time take part in moves. None move while a job of another project can grow.
    """
    claims = list(running)
    division = _Division(claims, free)
    division.grow()
    # Every move is an improvement by the measured speeds, but irregular ones could make moves go in a circle.
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
    """Return whether the jobs that shrink to `sizes` would stay so: growth, which ignores moves, must not give the
    freed workers back to them."""
    shrunk = [replace(one, workers=min(one.workers, sizes[one.job]), left_seconds=None) for one in claims]
    freed = sum((one.workers - less.workers) * one.shape[0] for one, less in zip(claims, shrunk, strict=True))
    division = _Division(shrunk, free + freed, weights_of(claims))
    division.grow()
    return all(division.workers[one.job] <= sizes[one.job] for one in claims if sizes[one.job] < one.workers)


class _Division:
    """The working state of one division. `workers`: their present number, by job id; `grown`: the jobs that have
    grown, in the order in which they first grew."""

    def __init__(
        self, claims: Iterable[Claim], free: int, weights: Mapping[str, float] | None = None
    ) -> None:
        self._claims = sorted(claims, key=lambda claim: claim.job)
        self._free = free
        self.workers = {claim.job: claim.workers for claim in self._claims}
        self.grown: list[Claim] = []
        self._weights = weights or weights_of(self._claims)

    def grow(self) -> None:
        """Assign the free GPUs, by the most valuable step first, until none fits."""
        while (best := next(self._affordable(), None)) is not None:
            claim, to = best
            self._set(claim, to)
            if claim not in self.grown:
                self.grown.append(claim)

    def move(self) -> bool:
        """Make the most valuable move of workers that gains enough over its cost. Return False if there is none."""
        steps = self._steps()
        projects = {claim.project for claim, _ in steps}
        for claim, to in steps:
            is_allowed = claim.left_seconds is not None and projects == {claim.project}
            if not is_allowed or self._saved(claim, to) < LEAST_SAVED_SECONDS:
                continue
            has = self.workers[claim.job]
            lacks = (to - has) * claim.shape[0] - self._free
            shrinking = self._shrinking_for(claim, lacks, self._value(claim, has, to) / ADVANTAGE)
            if shrinking is not None:
                self._shrink(shrinking)
                self._set(claim, to)
                return True
        return False

    def _steps(self) -> list[tuple[Claim, int]]:
        """Return the next step of each job that can grow, the most valuable first."""
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

    def _shrinking_for(self, growing: Claim, lacks: int, below: float) -> list[tuple[Claim, int]] | None:
        """Return (job, new size) of jobs that together free `lacks` GPUs for `growing`, by steps that each lose less
        than `below`; None if these free too few."""
        found: list[tuple[Claim, int]] = []
        has = dict(self.workers)
        for _, _, claim, size in sorted(self._steps_down(growing, lacks, below), key=lambda one: one[:2]):
            if lacks <= 0:
                break
            found.append((claim, size))
            lacks -= (has[claim.job] - size) * claim.shape[0]
            has[claim.job] = size
        return found if lacks <= 0 else None

    def _steps_down(
        self, growing: Claim, lacks: int, below: float
    ) -> Iterator[tuple[float, str, Claim, int]]:
        for claim in self._claims:
            if claim is growing or not _may_shrink_for(claim, growing) or claim.left_seconds is None:
                continue
            has, needed, worth = self.workers[claim.job], math.ceil(lacks / claim.shape[0]), 0.0
            while True:
                # A step releases at most half of the workers, so that its loss compares with the gain of a doubling;
                # the next step halves the rest.
                size = largest_size(claim.sizes, max(has - needed, has // 2, claim.fewest))
                if not claim.fewest <= size < has:
                    break
                # A later step never counts as a smaller loss than an earlier one, so that the sort keeps their order.
                worth = max(worth, self._value(claim, size, has))
                if worth >= below:
                    break
                yield worth, claim.job, claim, size
                needed, has = needed - (has - size), size

    def _shrink(self, shrinking: Iterable[tuple[Claim, int]]) -> None:
        for claim, size in shrinking:
            self._set(claim, size)

    def _set(self, claim: Claim, workers: int) -> None:
        self._free -= (workers - self.workers[claim.job]) * claim.shape[0]
        self.workers[claim.job] = workers

    def _value(self, claim: Claim, small: int, large: int) -> float:
        return gain(claim, small, large, self._weights[claim.job])

    def _saved(self, claim: Claim, to: int) -> float:
        """Return by how many seconds the job would end earlier with `to` workers."""
        has = self.workers[claim.job]
        return claim.left_alone * claim.speed(1) * (1 / claim.speed(has) - 1 / claim.speed(to))


def gain(claim: Claim, small: int, large: int, weight: float) -> float:
    """Return the value, per GPU, of growing from `small` to `large` workers (formula: module docstring); also the
    loss of shrinking back. `weight`: see `weights_of`."""
    slow, alone = claim.speed(small), claim.speed(1)
    # Two roots, since the product of two small speeds could be 0.
    gained = (claim.speed(large) - slow) / (math.sqrt(slow) * math.sqrt(alone))
    return gained / ((large - small) * max(1, claim.shape[0])) * weight


def weights_of(claims: Collection[Claim]) -> dict[str, float]:
    """Return each job's weight, by id: sqrt(EXPECTED + position), where the longest remaining time has position 1."""
    longest = sorted(claims, key=lambda claim: (-claim.left_alone, claim.job))
    return {claim.job: math.sqrt(EXPECTED + place) for place, claim in enumerate(longest, 1)}


def _may_shrink_for(claim: Claim, growing: Claim) -> bool:
    """Return whether `claim` may give workers to `growing`, and one of its workers has all that a worker of `growing`
    needs."""
    has_room = all(needs <= has for needs, has in zip(growing.shape, claim.shape, strict=True))
    is_alike = claim.project == growing.project and claim.priority <= growing.priority
    return claim.may_shrink and claim.shape[0] > 0 and has_room and is_alike
