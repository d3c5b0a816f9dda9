"""Compute how many more GPUs a running job may get under the limits and quotas of its project and
department."""

from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Q, QuerySet, Sum

from controlplane.models import Department, Project
from jobs.kinds.membership import OPEN_STATES
from jobs.models import Job, ScaleOperation


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit, or a quota if the job may not exceed it, of the project or department `owner`, in milli-GPUs. `name`:
    which of the two. `held`: the allocations that count against it."""

    name: str
    owner: str
    milli_gpus: int
    held: int

    @property
    def left(self) -> int:
        return max(0, self.milli_gpus - self.held)


def bounds_of(job: Job, *, with_asked: bool = False) -> list[Bound]:
    """Return the limits and quotas that apply to a job's growth; [] for a job without GPUs. `with_asked`: count
    GPUs requested by open scale operations of other jobs as held."""
    if not job.milli_gpus:
        return []
    project = job.project
    found = list(_bounds(project, Q(project=project), job, with_asked))
    if project.department is not None:
        siblings = Q(project__department=project.department, project__cluster=project.cluster_id)
        found += _bounds(project.department, siblings, job, with_asked)
    return found


def _bounds(share: Project | Department, theirs: Q, job: Job, with_asked: bool) -> Iterator[Bound]:
    jobs = Job.objects.filter(theirs)
    if share.gpu_limit_milli is not None:
        yield Bound("limit", share.name, share.gpu_limit_milli, _held(jobs, job, with_asked))
    if not job.is_preemptible:
        fixed = jobs.filter(is_preemptible=False)
        yield Bound("quota", share.name, share.gpu_quota_milli, _held(fixed, job, with_asked))


def _held(jobs: QuerySet[Job], job: Job, with_asked: bool) -> int:
    held = int(jobs.aggregate(held=Sum("allocated_milli", default=0))["held"])
    if not with_asked:
        return held
    others = ScaleOperation.objects.filter(job__in=jobs, state__in=OPEN_STATES).exclude(job=job)
    # Operations with joining workers hold their GPUs already.
    asked = (one for one in others.select_related("job") if not one.joining)
    return held + sum(max(0, one.to_workers - one.from_workers) * one.job.milli_gpus for one in asked)
