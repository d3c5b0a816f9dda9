"""Workers that a running elastic job lacks inside its project's quota are taken back from borrowers."""

from __future__ import annotations

from controlplane.access import SYSTEM
from controlplane.loop import cycle
from controlplane.scheduling.mentions import OWN
from jobs.models import Job, ScaleOperation
from jobs.queries import explanation
from jobs.scaling import scale_job
from tests.builders import make_job, make_project
from tests.loop.elastic_program import Program, live


def borrowed(plant, gpus=1, count=16):
    """Let team-b borrow the whole cluster of 16 GPUs with jobs of so many GPUs."""
    theirs = make_project("team-b", quota=0)
    for number in range(count):
        make_job(theirs, f"borrows-{number}", gpus=gpus)
    plant.settle()
    assert plant.allocated() == {"team-b": 16}


def submitted(plant, workers=3, fewest=1, **program) -> Program:
    bounds = {"min_workers": fewest, "workers": workers, "max_workers": 8}
    project = make_project("team-a", quota=8)
    return Program(plant, make_job(project, "el", kind="elastic", **bounds), **program)


def test_a_job_that_started_at_its_minimum_gets_the_workers_that_it_asks_for(plant):
    borrowed(plant)
    program = submitted(plant)
    program.settle()
    assert plant.allocated() == {"team-a": 3, "team-b": 13}
    assert live(program.job) == [0, 1, 2]
    assert (program.job.state, program.job.attempt) == ("running", 1)
    assert "awaited_workers" not in program.job.details
    preempted = Job.objects.filter(project__name="team-b", state="queued")
    assert preempted.count() == 3
    # Nobody is stopped again.
    attempts = sum(Job.objects.values_list("attempt", flat=True))
    program.in_seconds(120)
    assert sum(Job.objects.values_list("attempt", flat=True)) == attempts
    assert plant.allocated() == {"team-a": 3, "team-b": 13}


def test_while_others_stop_the_job_says_so(plant):
    borrowed(plant)
    program = submitted(plant)
    seen = set()
    for _ in range(40):
        plant.tick()
        program.act()
        program.job.refresh_from_db()
        if awaited := program.job.details.get("awaited_workers"):
            seen.add((awaited["workers"], awaited["asked"], len(awaited["stopping"])))
            shown = explanation(program.job, OWN)["reason"]
            assert shown["message"].endswith(
                "2 of its 3 workers wait for room inside the quota: 2 jobs of other projects are stopped."
            )
            assert shown["details"]["awaited_workers"].keys() == {"workers", "asked", "stopping"}
            assert "borrows" not in str(shown)
    assert seen == {(2, 3, 2)}


def test_a_scale_out_inside_the_quota_gets_its_room(plant):
    borrowed(plant)
    program = submitted(plant, workers=1)
    program.settle()
    operation = scale_job(program.job, 4, actor=SYSTEM)
    program.settle()
    operation.refresh_from_db()
    assert (operation.state, plant.allocated()) == ("succeeded", {"team-a": 4, "team-b": 12})


def test_a_scale_out_beyond_the_quota_stops_nothing(plant):
    borrowed(plant)
    program = submitted(plant, workers=1)
    program.settle()
    # The project's other job leaves 6 of its 8 GPUs.
    make_job(program.job.project, "other")
    program.settle()
    operation = scale_job(program.job, 8, actor=SYSTEM, timeout_seconds=30)
    program.in_seconds(60)
    operation.refresh_from_db()
    assert (operation.state, plant.allocated()) == ("rolled_back", {"team-a": 2, "team-b": 14})


def test_a_borrowing_elastic_job_shrinks_and_is_not_stopped(plant):
    theirs = make_project("team-b", quota=0)
    bounds = {"min_workers": 1, "workers": 16, "max_workers": 16}
    borrower = Program(plant, make_job(theirs, "wide", kind="elastic", **bounds))
    borrower.settle()
    program = submitted(plant)
    for _ in range(80):
        plant.tick()
        program.act()
        borrower.act()
    for one in (program.job, borrower.job):
        one.refresh_from_db()
    assert plant.allocated() == {"team-a": 3, "team-b": 13}
    assert (borrower.job.state, borrower.job.attempt, len(live(borrower.job))) == ("running", 1, 13)
    causes = ScaleOperation.objects.filter(job=borrower.job).values_list("cause", "state")
    assert set(causes) == {("reclaim", "succeeded")}


def test_a_size_asked_for_while_the_loop_plans_is_not_mixed_with_what_it_planned(plant, monkeypatch):
    program = submitted(plant, workers=1)
    program.settle()
    # It has no room, so that idle GPUs go by quota and not by what jobs gain.
    make_job(make_project("team-b", quota=0), "waits", gpus=8, workers=2)
    Job.objects.filter(pk=program.job.pk).update(pods_wanted=3)
    grow, operations = cycle.grow_jobs, []

    def asked_meanwhile(cluster, elastic, engine, seen, plan, now):
        if any(not one.is_promised for one in plan.growth) and not operations:
            operations.append(scale_job(program.job, 2, actor=SYSTEM))
        return grow(cluster, elastic, engine, seen, plan, now)

    monkeypatch.setattr(cycle, "grow_jobs", asked_meanwhile)
    program.settle()
    [operation] = operations
    operation.refresh_from_db()
    assert (operation.state, operation.to_workers) == ("succeeded", 2)
    assert (live(program.job), program.job.pods_wanted) == ([0, 1], 2)


def test_what_one_job_gave_for_a_waiting_gang_stays_free_until_another_has_given_too(plant):
    project = make_project("team-a", quota=16)
    bounds = {"min_workers": 6, "workers": 8, "max_workers": 8}
    fast, slow = (Program(plant, make_job(project, name, kind="elastic", **bounds)) for name in "ab")
    for program in (fast, slow):
        program.settle()
    assert (len(live(fast.job)), len(live(slow.job))) == (8, 8)
    waits = make_job(project, "waits", gpus=1, workers=4)
    for turn in range(60):
        plant.tick(5.0)
        fast.act()
        if not turn % 4:
            slow.act()
    waits.refresh_from_db()
    assert (waits.state, len(live(fast.job)), len(live(slow.job))) == ("running", 6, 6)
    assert ScaleOperation.objects.filter(cause="balance", state="succeeded").count() == 2


def test_nobody_is_stopped_for_a_job_whose_training_has_ended(plant):
    program = submitted(plant, workers=2)
    program.settle()
    theirs = make_project("team-b", quota=0)
    for number in range(14):
        make_job(theirs, f"borrows-{number}")
    program.settle()
    assert plant.allocated() == {"team-a": 2, "team-b": 14}
    # The other member still runs.
    plant.engine.finish(f"{program.job.pk}-1-0")
    Job.objects.filter(pk=program.job.pk).update(pods_wanted=4)
    program.in_seconds(60)
    assert set(Job.objects.filter(project=theirs).values_list("state", "attempt")) == {("running", 1)}
