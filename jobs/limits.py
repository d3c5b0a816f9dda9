"""Time limits of a running job: its own, and its project's for interactive jobs. Pure except for reading the
job's row."""

from dataclasses import dataclass
from datetime import datetime

from jobs.kinds.registry import KINDS
from jobs.models import Job


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that a job has reached: reason code, sentence and value."""

    reason: str
    message: str
    seconds: int


def limit_reached(job: Job, now: datetime, *, is_watched: bool) -> Limit | None:
    """Return the first limit that the job has reached at `now`; None if it has reached none or has not started.
    `is_watched`: its use is measured; idle limits apply only then."""
    if job.started_at is None:
        return None
    ran = (now - job.started_at).total_seconds()
    most = job.max_runtime_seconds
    if most and ran >= most:
        return Limit("max_runtime", f"It ran for its limit of {most} s.", most)
    if not KINDS[job.kind].has_interactive_limits:
        return None
    most = job.project.interactive_max_seconds
    if most and ran >= most:
        return Limit(
            "interactive_time_limit", f"{job.project.name} ends interactive jobs after {most} s.", most
        )
    idle = (now - max(job.active_at or job.started_at, job.started_at)).total_seconds()
    most = job.project.interactive_idle_seconds
    if most and is_watched and idle >= most:
        return Limit(
            "interactive_idle", f"It used no GPU for {most} s, the limit of {job.project.name}.", most
        )
    return None
