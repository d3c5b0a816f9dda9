"""Run times that are learned from the jobs of a cluster that have ended."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F

from controlplane.models import Cluster
from controlplane.scheduling.estimates import LearnedRunTimes
from controlplane.scheduling.run_times import Run, RunTimes
from jobs.lifecycle import ACTIVE_STATES, FINAL_STATES, QUEUED
from jobs.models import Job

# The newest jobs that have ended, from which run times are learned.
HISTORY = 5000

# Jobs that have ended since count after so long.
RENEWED_EVERY = timedelta(minutes=1)

_ASKED = ("project__name", "user_id", "spec__image", "milli_gpus", "pods_wanted")


class KeptRunTimes:
    """Expected run times of a cluster's unfinished jobs that declare none, kept between observations. A job keeps the
    run time that was learned when it was first seen, so that a plan does not change with every job that ends."""

    def __init__(self) -> None:
        self._expected: dict[str, int | None] = {}
        self._known: RunTimes | None = None
        self._cluster: Cluster | None = None
        self._read_at: datetime | None = None

    def renew(self, cluster: Cluster, now: datetime, unfinished: Collection[str]) -> None:
        """Forget what is older than RENEWED_EVERY, all jobs but the unfinished ones, and those without a run time."""
        self._cluster = cluster
        if self._read_at is None or not timedelta() <= now - self._read_at < RENEWED_EVERY:
            self._known, self._read_at = None, now
            known = self._expected.items()
            self._expected = {job: seconds for job, seconds in known if seconds and job in unfinished}

    def of(self, row: Mapping[str, Any]) -> int | None:
        """Return the run time of one job, by its columns; None for a job that declares one, or is like no earlier
        job."""
        if row["spec"].get("expected_runtime_seconds") is not None:
            return None
        key: str = row["id"]
        if key not in self._expected:
            found = self._history().learned(_run_of(row))
            self._expected[key] = None if found is None else found.expected
        return self._expected[key]

    def _history(self) -> RunTimes:
        if self._known is None:
            assert self._cluster is not None
            self._known = RunTimes(_history(self._cluster))
        return self._known


def _run_of(row: Mapping[str, Any]) -> Run:
    image = row["spec"].get("image") or ""
    return Run(row["project__name"], str(row["user_id"]), image, row["milli_gpus"] * row["pods_wanted"])


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
        found = known.learned(Run(project, str(user), image or "", milli * pods))
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
        Run(project, str(user), image or "", milli * pods, max(1, int(ran.total_seconds())))
        for project, user, image, milli, pods, ran in rows
    ]


def _asked_of(job: Job) -> list[Any]:
    image = job.spec.get("image")
    return [job.project.name, job.user_id, image, job.milli_gpus, job.pods_wanted]
