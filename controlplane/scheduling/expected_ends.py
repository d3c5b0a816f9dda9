"""When running jobs are expected to end, and whether a queued one would end in time; all in seconds. A run time is
declared by the user or learned."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence

from controlplane.scheduling.view import JobView

End = tuple[int, int, str, JobView]
"""(expected end, first submission, id, job)."""

# An overdue job is expected to be late by as much again, at least this many seconds, so that its expected end
# is never imminent.
LEAST_LEFT = 600
# Run times are rounded to this many steps per doubling, so that jobs of one class share one verdict.
STEPS = 4


def expected_end(job: JobView, now: int) -> int | None:
    """Return when an active job is expected to end, in Unix seconds; None if its run time is unknown. A job that has
    not started yet counts as starting now."""
    expected = job.expected_runtime_seconds
    if expected is None:
        return None
    end = (now if job.started_at is None else job.started_at) + expected
    return end if end > now else now + max(LEAST_LEFT, now - end)


def ends_by(job: JobView, now: int, at: int) -> bool:
    """Return whether a job that starts now is expected to end by the time `at`; False if its run time is unknown.
    Times are in Unix seconds."""
    expected = rounded_up(job.expected_runtime_seconds)
    return expected is not None and now + expected <= at


def rounded_up(seconds: int | None) -> int | None:
    """Return a run time rounded up to one of STEPS values per doubling, so that there are few distinct values. None
    stays None."""
    if seconds is None or seconds <= STEPS:
        return seconds
    step = 1 << max(0, (seconds - 1).bit_length() - STEPS.bit_length())
    return -(-seconds // step) * step


class ExpectedEnds:
    """The active jobs with a known run time, sorted by expected end."""

    __slots__ = ("_started", "_starting")

    def __init__(self) -> None:
        # Sorted by the end expected at the start, which does not change, so the order stays valid. The ends of overdue
        # jobs are adjusted when they are read.
        self._started: list[End] = []
        self._starting: dict[str, JobView] = {}

    def __len__(self) -> int:
        return len(self._started) + len(self._starting)

    def add(self, job: JobView) -> None:
        """Add an active job. One without an expected run time is ignored."""
        if job.expected_runtime_seconds is None:
            return
        if job.started_at is None:
            self._starting[job.id] = job
        else:
            insort(self._started, (*_key(job, job.started_at + job.expected_runtime_seconds), job))

    def remove(self, job: JobView) -> None:
        """Remove a job, which must equal the one that was added."""
        if job.expected_runtime_seconds is None:
            return
        if job.started_at is None:
            del self._starting[job.id]
        else:
            key = _key(job, job.started_at + job.expected_runtime_seconds)
            del self._started[bisect_left(self._started, key)]

    def at(self, now: int, but: Collection[str], starts: Sequence[JobView]) -> list[End]:
        """Return the expected ends (Unix seconds, submit rank, job id, job) of the active jobs and of `starts`,
        earliest first; without the jobs whose ids are in `but`. A job past its expected end gets a later one, see
        `expected_end`."""
        overdue = bisect_right(self._started, now, key=_end)
        moved = [job for *_, job in self._started[:overdue]]
        found = [
            (*_key(job, end), job)
            for job in (*moved, *self._starting.values(), *starts)
            if (end := expected_end(job, now)) is not None
        ]
        found += self._started[overdue:]
        found.sort()
        return [one for one in found if one[2] not in but] if but else found


def _key(job: JobView, end: int) -> tuple[int, int, str]:
    return end, job.submit_rank, job.id


def _end(end: End) -> int:
    return end[0]
