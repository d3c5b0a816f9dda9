"""Read the jobs of a cluster's last days as they were submitted and ran, to replay them in the scheduler's
core.

Not in the record: jobs that have been deleted, nodes that joined or left, and the quotas of that time.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from statistics import median_low
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from controlplane.loop.observe import observe_recorded
from controlplane.models import Cluster
from controlplane.scheduling.course import UNKNOWN_SECONDS
from controlplane.scheduling.recorded import RecordedJob
from controlplane.scheduling.view import ClusterView, JobView
from jobs.lifecycle import FINAL_STATES, SUSPENDED
from jobs.models import Attempt, Job

# The longest of these periods, in days, with at most MOST_JOBS jobs is replayed.
DAYS = (7, 3, 1)
MOST_JOBS = 20_000


@dataclass(frozen=True, slots=True)
class RecordedWeek:
    """The record of a period. `view`: the cluster at its beginning, without jobs. `until`: its end in Unix
    seconds. `left_out`: the number of jobs that ended or were suspended without having run."""

    view: ClusterView
    until: int
    jobs: Sequence[RecordedJob]
    left_out: int

    def summary(self) -> dict[str, Any]:
        """Return the replayed period and number of jobs in REST form."""
        return {
            "since": datetime.fromtimestamp(self.view.now, UTC),
            "until": datetime.fromtimestamp(self.until, UTC),
            "jobs": len(self.jobs),
            "left_out": self.left_out,
        }


def recorded_week(cluster: Cluster, view: ClusterView) -> RecordedWeek | None:
    """Return the record of the longest period, of DAYS, before `view.now` that has at most MOST_JOBS jobs; None
    if even the shortest has more. `view`: the cluster now."""
    now = datetime.fromtimestamp(view.now, UTC)
    for days in DAYS:
        jobs = _unfinished_since(cluster, now - timedelta(days=days))
        if jobs.count() <= MOST_JOBS:
            return _read(cluster, view, now - timedelta(days=days), jobs)
    return None


def _unfinished_since(cluster: Cluster, since: datetime) -> QuerySet[Job]:
    left = Q(finished_at=None) | Q(finished_at__gte=since)
    return Job.objects.filter(left, project__cluster=cluster)


def _read(cluster: Cluster, view: ClusterView, since: datetime, jobs: QuerySet[Job]) -> RecordedWeek:
    now, began = view.now, int(since.timestamp())
    spans = _spans(jobs, now)
    views = observe_recorded(cluster, datetime.fromtimestamp(now, UTC), jobs)
    usual = median_low(
        [sum(end - start for start, end in one) for one in spans.values()] or [UNKNOWN_SECONDS]
    )
    found: list[RecordedJob] = []
    for key, state, created_at in jobs.values_list("pk", "state", "created_at"):
        job, ran, is_over = views.get(str(key)), spans.get(key, []), state in (*FINAL_STATES, SUSPENDED)
        if job is None or (is_over and not ran):
            continue
        submitted = int(created_at.timestamp())
        found.append(_recorded(job, submitted, ran, began, 0 if is_over else _left(job, ran, usual)))
    return RecordedWeek(
        # The cluster may be unreachable now but was not then; without this the replay would start nothing.
        view=replace(view, now=began, jobs=(), is_engine_reachable=True),
        until=now,
        jobs=found,
        left_out=len(views) - len(found),
    )


def _spans(jobs: QuerySet[Job], now: int) -> Mapping[UUID, list[tuple[int, int]]]:
    """Return the (start, end) of each attempt, in Unix seconds, by job id in order. An attempt that still runs ends at
    `now`."""
    found: dict[UUID, list[tuple[int, int]]] = defaultdict(list)
    attempts = Attempt.objects.filter(job__in=jobs).order_by("number")
    for job, start, end in attempts.values_list("job_id", "created_at", "ended_at"):
        found[job].append((int(start.timestamp()), now if end is None else int(end.timestamp())))
    return found


def _recorded(
    job: JobView, submitted: int, ran: Sequence[tuple[int, int]], began: int, left: int
) -> RecordedJob:
    """Return the recorded job, which ran for these (start, end) spans and needs `left` more seconds. `began`: start
    of the recorded period; a job that ran already then was not submitted in it. All times in Unix seconds."""
    runs_already = bool(ran) and ran[0][0] < began
    since = began if runs_already else submitted
    seconds = sum(max(0, end - max(since, start)) for start, end in ran)
    waited = None if runs_already or not ran else max(0, ran[0][0] - submitted)
    return RecordedJob(job, None if runs_already else submitted, max(1, seconds + left), waited)


def _left(job: JobView, ran: Sequence[tuple[int, int]], usual: int) -> int:
    """Return for how many more seconds an unfinished job is expected to run, after the spans that it `ran`. `usual`:
    the run time in seconds of a job without an expected one. A job past its expected end is expected to run as long
    again as it is overdue."""
    seconds = sum(end - start for start, end in ran)
    expected = job.expected_runtime_seconds or usual
    return expected - seconds if seconds < expected else min(seconds, seconds - expected)
