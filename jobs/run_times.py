"""Run times that are learned from the jobs of a cluster that have ended."""

from typing import Any

from django.db.models import F

from controlplane.models import Cluster
from controlplane.scheduling.estimates import LearnedRunTimes
from controlplane.scheduling.run_times import Run, RunTimes
from jobs.lifecycle import ACTIVE_STATES, FINAL_STATES, QUEUED
from jobs.models import Job

# The newest jobs that have ended, from which run times are learned.
HISTORY = 5000

_ASKED = ("project__name", "user__username", "spec__image", "milli_gpus", "pods_wanted")


def learned_run_times(cluster: Cluster, *others: Job) -> LearnedRunTimes:
    """Return the run times of the cluster's unfinished jobs, and of `others`, that declare none and have earlier jobs
    to learn from; no longer than their time limits."""
    unfinished = Job.objects.filter(project__cluster=cluster, state__in=(QUEUED, *ACTIVE_STATES))
    rows = unfinished.filter(spec__expected_runtime_seconds=None)
    asked = [
        (str(pk), run, most) for pk, most, *run in rows.values_list("pk", "max_runtime_seconds", *_ASKED)
    ]
    asked += [
        (str(job.pk), _asked_of(job), job.max_runtime_seconds)
        for job in others
        if job.spec.get("expected_runtime_seconds") is None
    ]
    early: dict[str, int] = {}
    expected: dict[str, int] = {}
    late: dict[str, int] = {}
    learned = LearnedRunTimes(early, expected, late)
    if not asked:
        return learned
    known = RunTimes(_history(cluster))
    for job, (project, user, image, milli, pods), most in asked:
        found = known.learned(Run(project, user, image or "", milli * pods))
        if found is not None:
            early[job], expected[job], late[job] = (
                min(one, most or one) for one in (found.early, found.expected, found.late)
            )
    return learned


def _history(cluster: Cluster) -> list[Run]:
    """Return what ran in one piece, newest first: the start of a job that was preempted is that of its last attempt."""
    ended = Job.objects.filter(project__cluster=cluster, state__in=FINAL_STATES, attempt=1)
    ended = ended.exclude(started_at=None).exclude(finished_at=None).order_by("-submit_rank")
    rows = ended.annotate(ran=F("finished_at") - F("started_at")).values_list(*_ASKED, "ran")[:HISTORY]
    return [
        Run(project, user, image or "", milli * pods, max(1, int(ran.total_seconds())))
        for project, user, image, milli, pods, ran in rows
    ]


def _asked_of(job: Job) -> list[Any]:
    image = job.spec.get("image")
    return [job.project.name, job.user.username, image, job.milli_gpus, job.pods_wanted]
