"""Select the pod whose log is shown by default for a job: rank 0 or, once that worker of an elastic job has
left, the first member of the current generation."""

from django.db.models import QuerySet

from jobs.kinds.registry import KINDS
from jobs.models import Generation, Job

# Rank of a generation's first member.
FIRST = "members__0__id"


def default_log_rank(job: Job, attempt: int) -> int:
    """Return the rank whose log pages show by default for an attempt: 0, or the first member of an elastic job's
    newest generation."""
    if not KINDS[job.kind].is_elastic:
        return 0
    first = _generations(job, attempt).order_by("-number").values_list(FIRST, flat=True).first()
    return int(first or 0)


def default_log_ranks(job: Job, attempt: int) -> list[int]:
    """Return all ranks whose logs were shown by default during an attempt, without repeats, ordered by when
    each was last selected."""
    if not KINDS[job.kind].is_elastic:
        return [0]
    firsts = _generations(job, attempt).order_by("number").values_list(FIRST, flat=True)
    return list(dict.fromkeys(reversed([0, *firsts])))[::-1]


def _generations(job: Job, attempt: int) -> QuerySet[Generation]:
    return Generation.objects.filter(attempt__job=job, attempt__number=attempt, **{f"{FIRST}__isnull": False})
