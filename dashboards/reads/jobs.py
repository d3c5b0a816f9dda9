"""Data of jobs outside of lists: the attempts of one job, and search by name."""

from typing import Any

from controlplane.access import Actor
from jobs.access import visible_jobs
from jobs.models import Job

Row = dict[str, Any]


def attempts(job: Job) -> list[Row]:
    """Return the attempts of a job, oldest first, with their times, outcome, reason, message and exit code."""
    rows = job.attempts.order_by("number").values(
        "number", "created_at", "started_at", "ended_at", "outcome", "reason", "message", "exit_code"
    )
    return [{**row} for row in rows]


def find(actor: Actor, text: str, limit: int) -> list[Row]:
    """Return at most `limit` jobs that the actor may see and whose name contains `text`, newest first."""
    jobs = visible_jobs(actor).filter(name__icontains=text).order_by("-submit_rank")
    return [{**row} for row in jobs.values("id", "name", "project__name", "state")[:limit]]
