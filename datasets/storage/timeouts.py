"""Timeouts of a storage system."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of a storage system in seconds: to accept a connection, to answer a request, to end a job.
    `pause_seconds`: first and longest pause between two polls of a job."""

    connect_seconds: float = 5.0
    answer_seconds: float = 30.0
    job_seconds: float = 300.0
    pause_seconds: tuple[float, float] = (0.1, 2.0)


DEFAULT_TIMEOUTS = Timeouts()
