"""Run times: when a running job is expected to end, and whether a queued one ends in time.

An expected run time is declared by the user. Seconds throughout.
"""

from __future__ import annotations

from controlplane.scheduling.view import JobView

# An overdue job is expected to need as long again as it is late, at least this long: so its end keeps its distance.
LEAST_LEFT = 600
# Steps per doubling by which run times are told apart: jobs of one class share one verdict.
STEPS = 4


def expected_end(job: JobView, now: int) -> int | None:
    """Return when an active job is expected to end; None if its run time is unknown. One that has not started yet
    runs from now on."""
    expected = job.expected_runtime_seconds
    if expected is None:
        return None
    end = (now if job.started_at is None else job.started_at) + expected
    return end if end > now else now + max(LEAST_LEFT, now - end)


def ends_by(job: JobView, now: int, at: int) -> bool:
    """Return whether a job that starts now is expected to end by this time; False if its run time is
    unknown."""
    expected = rounded_up(job.expected_runtime_seconds)
    return expected is not None and now + expected <= at


def rounded_up(seconds: int | None) -> int | None:
    """Return the next run time of a scale of STEPS per doubling: few values, none below what is expected."""
    if seconds is None or seconds <= STEPS:
        return seconds
    step = 1 << max(0, (seconds - 1).bit_length() - STEPS.bit_length())
    return -(-seconds // step) * step
