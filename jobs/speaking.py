"""Which pods speak for a job: rank 0, and in an elastic job the first worker of each generation after it left."""

from jobs.kinds.registry import KINDS
from jobs.models import Generation, Job


def speaking_ranks(job: Job, attempt: int) -> list[int]:
    """Return the ranks that spoke for an attempt, one after the other. The log of the last one is shown by default."""
    if not KINDS[job.kind].is_elastic:
        return [0]
    generations = Generation.objects.filter(attempt__job=job, attempt__number=attempt).order_by("number")
    firsts = [members[0]["id"] for members in generations.values_list("members", flat=True) if members]
    return list(dict.fromkeys([0, *firsts]))
