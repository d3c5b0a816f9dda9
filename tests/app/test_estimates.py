"""Learned run times from rows, and whether jobs keep to the ranges that were shown."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.loop.observe import JobCache, observe
from controlplane.models import Cluster
from controlplane.scheduling.estimates import StartRange
from jobs.estimate_record import EstimateCounts, estimate_counts, record_estimate
from jobs.models import Attempt, Job, StartEstimate
from jobs.run_times import learned_run_times
from tests.builders import make_job
from tests.cast import Cast

pytestmark = pytest.mark.django_db


def ended(cast: Cast, name: str, seconds: int, **fields) -> Job:
    """A job of ben's that ran for so long."""
    job, now = make_job(cast.project, name, cast.ben), timezone.now()
    changes = {
        "state": "succeeded",
        "attempt": 1,
        "started_at": now - timedelta(seconds=seconds),
        "finished_at": now,
    }
    Job.objects.filter(pk=job.pk).update(**changes | fields)
    return job


def test_earlier_jobs_of_the_same_user_are_learned_from(cast: Cast):
    for number, seconds in enumerate((100, 200, 300, 400)):
        ended(cast, f"old-{number}", seconds)
    ended(cast, "preempted", 9000, attempt=3)
    ended(cast, "never-ran", 9000, started_at=None)
    waiting, stranger = make_job(cast.project, "new", cast.ben), make_job(cast.other, "other", cast.chi)
    found = learned_run_times(Cluster.objects.get())
    assert (found.early[str(waiting.pk)], found.late[str(waiting.pk)]) == (100, 300)
    assert str(stranger.pk) not in found.early


def test_a_declared_run_time_wins_and_a_time_limit_bounds(cast: Cast):
    for number in range(4):
        ended(cast, f"old-{number}", 300)
    declared = make_job(cast.project, "declared", cast.ben, expected_runtime_seconds=60)
    limited = make_job(cast.project, "limited", cast.ben, max_runtime_seconds=120)
    found = learned_run_times(Cluster.objects.get())
    assert str(declared.pk) not in found.late
    assert found.late[str(limited.pk)] == 120


def expected_in(cluster: Cluster, job: Job, kept: JobCache | None = None, later: int = 0) -> int | None:
    """What the scheduler sees of a job's run time."""
    view = observe(cluster, timezone.now() + timedelta(seconds=later), kept=kept).view
    return next(one.expected_runtime_seconds for one in view.jobs if one.id == str(job.pk))


def test_the_scheduler_sees_learned_run_times_of_jobs_that_declare_none(cast: Cast):
    for number in range(3):
        ended(cast, f"old-{number}", 300)
    cluster = Cluster.objects.get()
    assert expected_in(cluster, make_job(cast.project, "new", cast.ben)) == 300
    assert expected_in(cluster, make_job(cast.project, "long", cast.ben, expected_runtime_seconds=900)) == 900
    assert expected_in(cluster, make_job(cast.project, "limited", cast.ben, max_runtime_seconds=60)) == 60
    assert expected_in(cluster, make_job(cast.other, "stranger", cast.chi)) is None


def test_a_learned_run_time_stays_while_the_job_is_unfinished(cast: Cast):
    cluster, kept = Cluster.objects.get(), JobCache()
    job = make_job(cast.project, "new", cast.ben)
    assert expected_in(cluster, job, kept) is None
    for number in range(3):
        ended(cast, f"old-{number}", 300)
    # nothing is read again for a minute, then for jobs that have none
    assert expected_in(cluster, job, kept) is None
    assert expected_in(cluster, job, kept, later=61) == 300
    for number in range(6):
        ended(cast, f"longer-{number}", 9000)
    assert expected_in(cluster, job, kept, later=130) == 300
    assert expected_in(cluster, make_job(cast.project, "newer", cast.ben), kept, later=130) == 9000


def start(job: Job, seconds: int) -> None:
    """Start its next attempt so many seconds from now."""
    Attempt.objects.create(
        job=job, number=job.attempt + 1, created_at=timezone.now() + timedelta(seconds=seconds)
    )


def test_starts_are_judged_by_the_first_range_that_was_shown(cast: Cast):
    now = int(timezone.now().timestamp())
    jobs = [make_job(cast.project, f"job-{number}", cast.ben) for number in range(6)]
    for job in jobs[:4]:
        record_estimate(job, StartRange(now + 600, now + 1200))
        record_estimate(job, StartRange(now, now + 99_999))
    record_estimate(jobs[4], StartRange(now + 600, None))
    record_estimate(jobs[5], StartRange(now - 1200, now - 600))
    for job, seconds in zip(jobs[:3], (900, 60, 5000), strict=True):
        start(job, seconds)
    assert StartEstimate.objects.count() == 5
    since = timezone.now() - timedelta(days=1)
    found = estimate_counts(since)
    # the fourth may still keep to its range; the last waits although its range is over
    assert found == EstimateCounts(inside=1, early=1, late=2)
    assert found.share == 0.25
    assert estimate_counts(timezone.now() + timedelta(days=1)).share is None


def test_each_wait_of_a_job_is_judged(cast: Cast):
    now = int(timezone.now().timestamp())
    job = make_job(cast.project, "twice", cast.ben)
    record_estimate(job, StartRange(now, now + 600))
    start(job, 60)
    job.attempt = 1
    record_estimate(job, StartRange(now, now + 600))
    start(job, 6000)
    assert estimate_counts(timezone.now() - timedelta(days=1)) == EstimateCounts(inside=1, early=0, late=1)
