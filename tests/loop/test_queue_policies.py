"""The queue's policies from their settings to the scheduler: ageing of gangs, and the rank of preempted jobs."""

from datetime import timedelta

import pytest

from controlplane.config import environment as env
from controlplane.loop.observe import observe
from controlplane.models import Event
from jobs.models import Job
from jobs.queries import explanation
from tests.builders import make_job, make_project
from tests.loop.plant import Plant


def views(plant: Plant):
    return {job.name: job for job in observe(plant.cluster, plant.clock()).view.jobs}


@pytest.fixture
def reclaimed(plant):
    """A job that borrowed 8 GPUs and was stopped for the owner's; then a new one was submitted."""
    borrower, owner = make_project("p", quota=0), make_project("q", quota=16)
    make_job(borrower, name="old", gpus=8)
    plant.settle()
    plant.tick(seconds=60)
    for name in ("a", "b"):
        make_job(owner, name=name, gpus=8)
    plant.settle()
    make_job(borrower, name="new", gpus=8)
    return plant


def test_a_preempted_job_keeps_its_rank(reclaimed):
    found = views(reclaimed)
    assert Job.objects.get(name="old").state == "queued"
    assert found["old"].submit_rank < found["new"].submit_rank


def test_a_preempted_job_goes_behind_what_is_submitted_soon_after_its_stop(reclaimed, settings):
    settings.REQUEUE_RANK_SECONDS = 3600
    found = views(reclaimed)
    assert found["old"].submit_rank > found["new"].submit_rank > found["a"].submit_rank
    # What was never preempted stays in the order of submission.
    assert found["a"].submit_rank < found["b"].submit_rank
    stopped = Job.objects.get(name="old").queued_at
    assert found["old"].submit_rank == int((stopped.timestamp() + 3600) * 1_000_000)


def test_a_job_has_waited_since_its_submission_until_it_starts(reclaimed):
    found = views(reclaimed)
    assert found["old"].waiting_since is None
    assert found["new"].waiting_since == int(Job.objects.get(name="new").created_at.timestamp())


def test_a_gang_that_has_waited_for_long_gets_gpus_that_another_project_borrows(plant, settings):
    settings.GANG_AGEING_SECONDS = 7200
    borrower, poor = make_project("p", quota=0), make_project("q", quota=0)
    for name in ("one", "two"):
        make_job(borrower, name=name, gpus=8)
    plant.settle()
    make_job(poor, name="gang", kind="mpi", gpus=8, workers=2)
    for seconds in (3700, 3700):
        plant.tick(seconds=seconds)
    now = int(plant.clock().timestamp())
    assert Job.objects.get(name="gang").state == "queued"
    Job.objects.filter(project=borrower).update(progress={"checkpoint_at": now})
    plant.settle()
    assert Job.objects.get(name="gang").state == "running"
    causes = [event.data.get("cause") for event in Event.objects.filter(kind="job.stopping")]
    assert causes == ["ageing", "ageing"]
    assert "had waited for very long" in Job.objects.get(name="one").message


def test_the_rank_of_preempted_jobs_is_a_word_or_seconds():
    read = env.integer_or
    assert (
        read({"TRAINYARD_REQUEUE_RANK": "submission"}, "TRAINYARD_REQUEUE_RANK", "submission", 0, 9) is None
    )
    assert read({"TRAINYARD_REQUEUE_RANK": "7"}, "TRAINYARD_REQUEUE_RANK", "submission", 0, 9) == 7
    with pytest.raises(env.SettingInvalid, match=r"from 0 to 9, not 'late'\. It may also be submission\."):
        read({"TRAINYARD_REQUEUE_RANK": "late"}, "TRAINYARD_REQUEUE_RANK", "submission", 0, 9)


def test_a_gang_that_waits_says_from_when_it_ages(plant, settings):
    project = make_project("p", quota=0)
    one = make_job(project, name="one", gpus=8)
    gang = make_job(project, name="gang", kind="mpi", gpus=8, workers=3)
    assert explanation(gang, None)["ages_at"] is None
    settings.GANG_AGEING_SECONDS = 7200
    assert explanation(gang, None)["ages_at"] == gang.created_at.replace(microsecond=0) + timedelta(
        seconds=7200
    )
    # A job of one pod does not age, nor does one that has started before.
    assert explanation(one, None)["ages_at"] is None
    gang.attempt = 1
    assert explanation(gang, None)["ages_at"] is None
