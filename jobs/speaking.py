"""Which pods speak for a job: rank 0, and in an elastic job the first worker of each generation after it left."""

from django.db.models import QuerySet

from jobs.kinds.registry import KINDS
from jobs.models import Generation, Job

# of a generation's members, the rank of the first
FIRST = "members__0__id"


def speaking_rank(job: Job, attempt: int) -> int:
    """Return the rank that spoke for an attempt last, whose log is shown by default."""
    if not KINDS[job.kind].is_elastic:
        return 0
    first = _generations(job, attempt).order_by("-number").values_list(FIRST, flat=True).first()
    return int(first or 0)


def speaking_ranks(job: Job, attempt: int) -> list[int]:
    """Return all ranks that spoke for an attempt, once each, in the order in which they did so last."""
    if not KINDS[job.kind].is_elastic:
        return [0]
    firsts = _generations(job, attempt).order_by("number").values_list(FIRST, flat=True)
    return list(dict.fromkeys(reversed([0, *firsts])))[::-1]


def _generations(job: Job, attempt: int) -> QuerySet[Generation]:
    return Generation.objects.filter(attempt__job=job, attempt__number=attempt, **{f"{FIRST}__isnull": False})
