"""What a project is owed is taken from running elastic jobs by shrinking them."""

from __future__ import annotations

from controlplane.access import SYSTEM
from controlplane.loop.growth import has_to_wait
from controlplane.loop.membership import GIVEN_UP, ElasticJobs
from jobs.actions import stop_job
from jobs.models import Job, ScaleOperation
from jobs.scaling import scale_job
from tests.builders import make_job, make_project
from tests.loop.elastic_program import live, started


def test_what_it_is_owed_is_given_by_shrinking_it(plant):
    program = started(plant, workers=16, most=16)
    theirs = make_project("team-b", quota=8)
    for number in range(3):
        make_job(theirs, f"owed-{number}")
    program.settle()
    job = program.job
    assert (job.state, job.attempt, job.pods_started) == ("running", 1, 13)
    assert plant.allocated() == {"team-a": 13, "team-b": 3}
    assert plant.states() == {"el": "running", "owed-0": "running", "owed-1": "running", "owed-2": "running"}
    operations = ScaleOperation.objects.order_by("created_at")
    assert {(one.cause, one.state, one.lost_steps) for one in operations} == {("reclaim", "succeeded", 0)}
    assert operations[0].message == "Its GPUs are reclaimed for team-b."
    stop_job(Job.objects.get(name="owed-0"), actor=SYSTEM)
    program.settle()
    assert (job.pods_started, plant.allocated()) == (14, {"team-a": 14, "team-b": 2})


def test_who_waits_for_a_job_that_shrinks_is_not_told_that_it_stops(plant):
    program = started(plant, workers=16, most=16)
    program.deaf.update(range(16))
    waits = make_job(make_project("team-b", quota=8), "waits", gpus=2)
    for _ in range(3):
        plant.tick()
        waits.refresh_from_db()
        assert waits.message == "2 GPUs are being freed for it by shrinking 1 job. It starts right after."


def owed(count: int) -> None:
    theirs = make_project("team-b", quota=8)
    for number in range(count):
        make_job(theirs, f"owed-{number}")


def test_the_users_own_operation_does_not_hold_off_what_is_owed(plant):
    program = started(plant, workers=16, most=16)
    program.deaf.add(15)
    operation = scale_job(program.job, 15, actor=SYSTEM, leaving=[15], timeout_seconds=7 * 86400)
    program.settle()
    owed(1)
    program.settle()
    operation.refresh_from_db()
    assert (operation.state, plant.states()["owed-0"]) == ("failed", "running")


def test_a_job_that_grows_by_itself_shrinks_all_the_same(plant):
    program = started(plant, workers=4, most=16, cold=set(range(4, 16)))
    Job.objects.filter(pk=program.job.pk).update(pods_wanted=16)
    program.settle()
    growth = ScaleOperation.objects.get()
    assert (growth.cause, growth.state, len(growth.joining)) == ("growth", "pending", 12)
    owed(8)
    program.settle()
    growth.refresh_from_db()
    assert (growth.state, program.job.state, program.job.attempt) == ("rolled_back", "running", 1)
    assert plant.allocated()["team-b"] == 8
    assert len(live(program.job)) >= 3
    # The growth did not fail: it begins anew as soon as there is room, without a back-off.
    assert growth.message == GIVEN_UP
    assert growth.finished_at is not None
    [attended] = ElasticJobs(plant.cluster).read()
    assert not has_to_wait(attended, growth.finished_at)


def test_a_job_that_is_ending_is_not_shrunk_but_gives_way(plant):
    program = started(plant, workers=16, most=16)
    plant.engine.finish(f"{program.job.pk}-1-0", 0)
    owed(2)
    program.settle()
    assert (plant.states()["owed-0"], plant.states()["owed-1"]) == ("running", "running")
    assert not ScaleOperation.objects.exists()


def test_after_a_reclaim_that_failed_the_whole_job_gives_way(plant):
    program = started(plant, workers=16, most=16)
    ScaleOperation.objects.create(
        job=program.job, attempt=1, state="failed", cause="reclaim", from_workers=16, to_workers=15
    )
    owed(1)
    program.settle()
    assert plant.states()["owed-0"] == "running"
    assert ScaleOperation.objects.count() == 1


def test_idle_gpus_beside_its_workers_are_taken_first(plant):
    """It was stopped as a whole: all of its GPUs were promised, and those that were idle were not."""
    program = started(plant, workers=5, most=5, quota=2)
    theirs = make_project("team-b", quota=14)
    make_job(theirs, "fills", gpus=8)
    plant.settle()
    claim = make_job(theirs, "claim", gpus=1, workers=6)
    program.in_seconds(60)
    for one in (program.job, claim):
        one.refresh_from_db()
    assert (program.job.state, program.job.attempt, len(live(program.job))) == ("running", 1, 2)
    assert claim.state == "running"
