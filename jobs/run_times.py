"""Learn run times from the cluster's jobs that have ended."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F

from controlplane.models import Cluster
from controlplane.scheduling.estimates import LearnedRunTimes
from controlplane.scheduling.run_times import Run, RunTimes
from jobs.lifecycle import ACTIVE_STATES, FINAL_STATES, QUEUED
from jobs.models import Job

# Run times are learned from this many newest ended jobs, so that reading the history takes no longer the older an
# installation is.
HISTORY = 5000

# The history is read again only after this time, because it is as many rows as HISTORY.
RENEWED_EVERY = timedelta(minutes=1)

_ASKED = ("project__name", "user_id", "spec__image", "milli_gpus", "pods_wanted")


class RunTimeCache:
    """Expected run times of a cluster's unfinished jobs that declare none, cached between observations. A job
    keeps the run time learned when it was first seen, so that a plan does not change with every job that
    ends."""

    def __init__(self) -> None:
        self._expected: dict[str, int | None] = {}
        # By the values that make a Run: thousands of queued jobs may be alike.
        self._learned: dict[tuple[Any, ...], int | None] = {}
        self._known: RunTimes | None = None
        self._cluster: Cluster | None = None
        self._read_at: datetime | None = None

    def renew(self, cluster: Cluster, now: datetime, unfinished: Collection[str]) -> bool:
        """Once per RENEWED_EVERY, forget jobs that are not in `unfinished` (ids of the cluster's jobs) and those
        without a learned run time; the history is then read again for them. Return whether this call did so."""
        self._cluster = cluster
        if self._read_at is not None and timedelta() <= now - self._read_at < RENEWED_EVERY:
            return False
        self._known, self._read_at, self._learned = None, now, {}
        known = self._expected.items()
        self._expected = {job: seconds for job, seconds in known if seconds and job in unfinished}
        return True

    def of(self, row: Mapping[str, Any]) -> int | None:
        """Return a job's expected run time in seconds, by its columns; None if the job declares one or
        resembles no earlier job."""
        if row["spec"].get("expected_runtime_seconds") is not None:
            return None
        key: str = row["id"]
        if key not in self._expected:
            self._expected[key] = self._learned_for(row)
        return self._expected[key]

    def _learned_for(self, row: Mapping[str, Any]) -> int | None:
        spec = row["spec"]
        alike = row["project__name"], row["user_id"], spec.get("image"), row["milli_gpus"], row["pods_wanted"]
        if alike not in self._learned:
            found = self._history().learned(_run_of(row))
            self._learned[alike] = None if found is None else found.expected
        return self._learned[alike]

    def _history(self) -> RunTimes:
        if self._known is None:
            assert self._cluster is not None
            self._known = RunTimes(_history(self._cluster))
        return self._known


def _run_of(row: Mapping[str, Any]) -> Run:
    image = row["spec"].get("image") or ""
    return Run(row["project__name"], str(row["user_id"]), image, row["milli_gpus"] * row["pods_wanted"])


def learned_run_times(cluster: Cluster, *others: Job) -> LearnedRunTimes:
    """Return the learned run times of the cluster's unfinished jobs, and of `others`, that declare none and
    resemble earlier jobs; never longer than their time limits."""
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
    """Return the runs of jobs that ended in their first attempt, newest first, at most HISTORY."""
    # A requeued job's start time is that of its last attempt only.
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
