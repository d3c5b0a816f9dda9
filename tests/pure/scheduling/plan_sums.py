"""The capacity that projects hold before and after a plan, for exactness.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controlplane.scheduling.feasibility import FeasibilityCheck
from controlplane.scheduling.plan import Hold, Plan, Preempt
from controlplane.scheduling.view import (
    ClusterView,
    DepartmentView,
    JobView,
    PodPlacement,
    ProjectView,
    placements_from_lists,
)
from tests.pure.scheduling.brute import Job


def staying(view: ClusterView, gone: set[str]) -> list[JobView]:
    """Return the jobs that still run once the stopping ones and `gone` (ids) have ended."""
    return [job for job in view.jobs if job.state == "active" and not job.is_stopping and job.id not in gone]


def milli_gpus_of(job: JobView) -> int:
    return sum(pod.milli_gpus for pod in job.placements)


def holds(view: ClusterView, project: str) -> int:
    return sum(
        milli_gpus_of(job)
        for job in view.jobs
        if job.project == project and job.state == "active" and not job.is_stopping
    )


def project_of(view: ClusterView, name: str) -> ProjectView:
    return next(project for project in view.projects if project.name == name)


def members_of(view: ClusterView, name: str) -> set[str]:
    return {name} | {project.name for project in view.projects if project.department == name}


def common_accounts(view: ClusterView, preempt: Preempt) -> list[ProjectView | DepartmentView]:
    """Return the project and the department that a victim and its beneficiary have in common."""
    own, gaining = project_of(view, preempt.project), project_of(view, preempt.beneficiary_project)
    department = own.department if own.department == gaining.department else None
    return [*([own] if own is gaining else []), *(one for one in view.departments if one.name == department)]


def running_sums(view: ClusterView, plan: Plan, members: set[str]) -> tuple[int, int]:
    """Return (preemptible, other) milli-GPUs that the projects `members` hold with the plan's starts, stopping
    jobs included."""
    jobs = {job.id: job for job in view.jobs}
    pods = [(job, job.placements) for job in view.jobs if job.state == "active"]
    pods += [(jobs[start.job], start.placements) for start in plan.starts]
    pods += [(jobs[one.job], one.placements) for one in plan.growth if not one.is_promised]
    return _sums(pods, members)


def sums_with_promises(view: ClusterView, plan: Plan, members: set[str]) -> tuple[int, int]:
    """Return (preemptible, other) milli-GPUs that the projects `members` hold once all stopping jobs have ended
    and all promised ones run."""
    jobs, victims = {job.id: job for job in view.jobs}, {one.job for one in plan.preempts}
    pods = [
        (job, job.placements)
        for job in view.jobs
        if job.state == "active" and not job.is_stopping and job.id not in victims
    ]
    pods += [(jobs[start.job], start.placements) for start in plan.starts]
    pods += [(jobs[hold.job], promised_to(hold)) for hold in plan.holds if hold.is_promised]
    pods += [(jobs[one.job], one.placements) for one in plan.growth]
    return _sums(pods, members)


def _sums(pods: Sequence[tuple[JobView, Sequence[PodPlacement]]], members: set[str]) -> tuple[int, int]:
    mine = [(job, pod.milli_gpus) for job, placements in pods if job.project in members for pod in placements]
    return (
        sum(milli for job, milli in mine if job.is_preemptible),
        sum(milli for job, milli in mine if not job.is_preemptible),
    )


def promised_to(hold: Hold) -> tuple[PodPlacement, ...]:
    return placements_from_lists(hold.details.get("promised", ()))


def all_newcomers(view: ClusterView, plan: Plan) -> list[Job]:
    check, jobs = FeasibilityCheck(view), {job.id: job for job in view.jobs}
    names = [start.job for start in plan.starts] + [hold.job for hold in plan.holds if hold.is_promised]
    found = [brute_job(check, jobs[name]) for name in names]
    for growth in plan.growth:
        one = jobs[growth.job]
        gang = 1 if one.missing[0] == 1 else len(growth.placements)
        count = len(growth.placements) // gang
        found += [brute_job(check, replace(one, pods=gang, min_pods=None))] * count
    return found


def brute_job(check: FeasibilityCheck, job: JobView) -> Job:
    return Job(job.id, job, check.request(job).pools)
