"""Requeue jobs whose pods the cluster's own scheduler preempted."""

from collections.abc import Mapping
from typing import Any

from controlplane.engines.base import PREEMPTED as POD_PREEMPTED
from controlplane.engines.base import PodReport, is_job_id
from controlplane.loop.pod_diff import PodKey
from controlplane.scheduling.mentions import public
from controlplane.scheduling.reasons import PREEMPTED
from jobs import lifecycle
from jobs.models import Job
from jobs.transitions import Target, send


def send_back(reports: Mapping[str, PodReport], pods: Mapping[str, PodKey]) -> None:
    """Requeue the jobs of `pods` that the cluster's own scheduler has preempted, even while they still run. Both
    mappings are by pod name.

    Call it before the ends of pods are read: the job then records what preempted it, and the end uses up no retry.
    """
    taken = {
        pods[name].job_id: report
        for name, report in reports.items()
        if report.reason == POD_PREEMPTED and name in pods
    }
    if not taken:
        return
    for job in Job.objects.filter(pk__in=taken, state__in=lifecycle.WORKING_STATES).select_related("project"):
        _send_back(job, taken[job.pk])


def _send_back(job: Job, report: PodReport) -> None:
    details = {**_preemption_details(job, report.taken_by), "milli_gpus": job.allocated_milli}
    send([(job, Target(lifecycle.QUEUED, PREEMPTED, public(PREEMPTED, details), details))])


def _preemption_details(job: Job, taken_by: str) -> dict[str, Any]:
    """Return the details of a preemption: its kind, and what preempted the job. `taken_by`: the id of one of our jobs
    or the name of another workload; "" if pods are moved to make room."""
    if not taken_by:
        return {"kind": "move"}
    beneficiary = _job(taken_by)
    if beneficiary is None:
        return {"kind": "reclaim", "by_name": taken_by}
    project = beneficiary.project.name
    kind = "preempt" if beneficiary.project_id == job.project_id else "reclaim"
    return {"kind": kind, "by_job": taken_by, "by_name": beneficiary.name, "by_project": project}


def _job(taken_by: str) -> Job | None:
    if not is_job_id(taken_by):
        return None
    return Job.objects.filter(pk=taken_by).select_related("project").first()
