"""A running elastic job is resized through the loop: by hand, after a loss, and when a project wants its quota."""

from __future__ import annotations

import json
import math
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.actions.errors import Conflict, Invalid
from controlplane.engines.base import MemberReport
from controlplane.loop import growth, membership
from controlplane.loop.podspecs import pod_spec
from controlplane.models import Command, Department, Event, Project
from jobs.actions import stop_job
from jobs.command_kinds import START_POD, STOP_POD
from jobs.models import Generation, Job, Pod, ScaleOperation
from jobs.scaling import Scaling, open_operation, plan_scaling, scale_job
from tests.builders import make_job, make_project
from tests.loop.elastic_program import Program, live, started


def write_status(plant, job: Job, rank: int, text: str, silent: float = 0.0) -> None:
    plant.engine.said[f"{job.pk}-1-{rank}"] = MemberReport(text, silent)


def causes(job: Job) -> list[str]:
    return list(
        Generation.objects.filter(attempt__job=job).order_by("number").values_list("cause", flat=True)
    )


def test_it_grows_while_it_runs(plant):
    program = started(plant)
    job = program.job
    operation = scale_job(job, 4, actor=SYSTEM)
    assert (operation.state, operation.from_workers, operation.to_workers) == ("pending", 2, 4)
    assert Job.objects.get().state == "scaling"
    program.settle()
    operation.refresh_from_db()
    assert (operation.state, operation.joining, operation.generation) == ("succeeded", [2, 3], 2)
    assert (operation.lost_steps, operation.repeated_steps, operation.pause_seconds) == (0, 0, 0.05)
    assert (job.state, job.attempt, job.pods_started, job.pods_wanted) == ("running", 1, 4, 4)
    assert (live(job), job.allocated_milli, plant.allocated()) == ([0, 1, 2, 3], 4000, {"team-a": 4})
    assert causes(job) == ["start", "grow"]
    spec = pod_spec(Command.objects.get(kind=START_POD, subject_id=f"{job.pk}-1-3").payload)
    assert (spec.world_size, spec.is_elastic, spec.kind_env["workers"]) == (4, True, "4")
    assert Event.objects.filter(kind="job.scaled", data__state="succeeded").count() == 1
    program.settle()
    assert causes(job) == ["start", "grow"]


def test_a_job_that_is_scaling_can_be_stopped(plant):
    job = started(plant).job
    operation = scale_job(job, 4, actor=SYSTEM)
    assert job.state == "scaling"
    stop_job(job, actor=SYSTEM)
    assert (job.state, job.next_state) == ("stopping", "stopped")
    plant.settle()
    operation.refresh_from_db()
    job.refresh_from_db()
    assert (job.state, operation.state) == ("stopped", "failed")


def test_it_shrinks_and_who_leaves_goes_only_after_it_has_acknowledged(plant):
    program = started(plant, workers=3)
    job = program.job
    program.deaf.add(2)
    plan = plan_scaling(job, Scaling(2))
    assert plan.leaving == ((2, "dgx1-1 holds 3 of the job's workers"),)
    assert not ScaleOperation.objects.exists()
    operation = scale_job(job, 2, actor=SYSTEM)
    program.settle()
    assert live(job) == [0, 1, 2]
    program.deaf.clear()
    program.settle()
    operation.refresh_from_db()
    assert (operation.state, operation.leaving, operation.lost_steps) == ("succeeded", [2], 0)
    assert (live(job), plant.allocated(), job.allocated_milli) == ([0, 1], {"team-a": 2}, 2000)
    assert Pod.objects.get(job=job, rank=2).exit_code == 0
    for rank in (0, 1):
        plant.engine.finish(f"{job.pk}-1-{rank}")
    program.settle()
    assert job.state == "succeeded"


def test_a_named_worker_leaves(plant):
    program = started(plant, workers=3)
    with pytest.raises(Invalid, match="There is no worker 7"):
        scale_job(program.job, 2, actor=SYSTEM, leaving=[7])
    with pytest.raises(Invalid, match="2 workers are named, and 1 are to leave"):
        scale_job(program.job, 2, actor=SYSTEM, leaving=[0, 1])
    scale_job(program.job, 2, actor=SYSTEM, leaving=[0])
    program.settle()
    assert live(program.job) == [1, 2]


def test_newcomers_that_are_not_ready_in_time_are_all_sent_away(plant):
    program = started(plant, cold={3})
    operation = scale_job(program.job, 4, actor=SYSTEM, timeout_seconds=60)
    program.settle()
    assert live(program.job) == [0, 1, 2, 3]
    program.in_seconds(90)
    operation.refresh_from_db()
    assert (operation.state, operation.pause_seconds, operation.lost_steps) == ("rolled_back", 0.0, 0)
    assert operation.message == "These workers were not ready to join in time: 3."
    assert (live(program.job), causes(program.job)) == ([0, 1], ["start"])
    assert (program.job.pods_wanted, plant.allocated()) == (2, {"team-a": 2})


def test_without_room_it_waits_and_then_nothing_has_happened(plant):
    program = started(plant)
    make_job(make_project("team-b", quota=14), "full", kind="interactive", gpus=8)
    make_job(Job.objects.get(name="full").project, "rest", kind="interactive", gpus=6)
    program.settle()
    operation = scale_job(program.job, 4, actor=SYSTEM, timeout_seconds=30)
    program.in_seconds(50)
    operation.refresh_from_db()
    assert (operation.state, operation.joining) == ("rolled_back", [])
    assert "no room" in operation.message
    assert Pod.objects.filter(job=program.job).count() == 2


def test_a_leaver_that_never_answers_stays(plant):
    program = started(plant)
    program.deaf |= {0, 1}
    operation = scale_job(program.job, 1, actor=SYSTEM, timeout_seconds=20)
    program.in_seconds(40)
    operation.refresh_from_db()
    assert (operation.state, live(program.job)) == ("rolled_back", [0, 1])
    assert causes(program.job) == ["start", "shrink", "roll_back"]


def test_one_operation_at_a_time(plant):
    program = started(plant, cold={2})
    running = scale_job(program.job, 3, actor=SYSTEM)
    with pytest.raises(Conflict, match=str(running.pk)) as refusal:
        scale_job(program.job, 1, actor=SYSTEM)
    assert refusal.value.code == "scale_running"


def test_what_a_limit_allows_is_said(plant):
    program = started(plant)
    project = program.job.project
    project.gpu_limit_milli = 5000
    project.save()
    with pytest.raises(Conflict, match="up to 5 workers are possible now, not 6") as refusal:
        scale_job(program.job, 6, actor=SYSTEM)
    assert refusal.value.code == "beyond_quota"
    with pytest.raises(Invalid, match="el has from 1 to 8 workers"):
        scale_job(program.job, 9, actor=SYSTEM)
    with pytest.raises(Invalid, match="has 2 workers already"):
        scale_job(program.job, 2, actor=SYSTEM)


def test_a_limit_is_checked_again_when_the_newcomers_start(plant):
    program = started(plant)
    operation = scale_job(program.job, 4, actor=SYSTEM, timeout_seconds=30)
    Project.objects.update(gpu_limit_milli=3000)
    program.in_seconds(50)
    operation.refresh_from_db()
    assert (operation.state, operation.joining, live(program.job)) == ("rolled_back", [], [0, 1])


def test_the_limit_of_a_department_and_what_others_have_asked_for_count(plant):
    program = started(plant)
    other = make_job(program.job.project, "other", kind="elastic", workers=2, max_workers=8)
    also = Program(plant, other)
    also.settle()
    program.settle()
    department = Department.objects.create(name="physics", gpu_limit_milli=6000)
    Project.objects.update(department=department)
    program.job.project.refresh_from_db()
    with pytest.raises(Conflict, match="limit of physics is 6 GPUs, of which 4 are held"):
        scale_job(program.job, 5, actor=SYSTEM)
    scale_job(other, 4, actor=SYSTEM)
    with pytest.raises(Conflict, match="of which 6 are held or asked for: up to 2 workers"):
        scale_job(program.job, 3, actor=SYSTEM)


def test_a_program_that_does_not_follow_its_membership_is_not_resized(plant):
    job = make_job(make_project(quota=8), "el", kind="elastic", workers=2, max_workers=4)
    plant.settle()
    job.refresh_from_db()
    with pytest.raises(Conflict, match="Suspend it, scale it and resume it"):
        scale_job(job, 3, actor=SYSTEM)


def test_after_a_loss_the_rest_goes_on_and_it_grows_back(plant):
    program = started(plant, workers=3, fewest=2)
    job = program.job
    plant.engine.finish(f"{job.pk}-1-1", 137)
    plant.tick()
    assert (job.state, causes(job)) == ("running", ["start", "loss"])
    program.settle()
    assert (job.state, job.failures, live(job), job.pods_started) == ("running", 0, [0, 2], 2)
    program.in_seconds(11)
    assert (job.state, job.attempt, live(job), causes(job)) == (
        "running",
        1,
        [0, 2, 3],
        ["start", "loss", "grow"],
    )
    grown = ScaleOperation.objects.get()
    assert (grown.cause, grown.requested_by, grown.from_workers, grown.to_workers) == (
        "recovery",
        "system",
        2,
        3,
    )
    assert Pod.objects.get(job=job, rank=1).exit_code == 137
    # Workers that missed the second generation must know that their collective call never ends.
    given = json.loads(plant.engine.memberships[f"{job.pk}-1-0"])
    assert (given["generation"], given["loss"]) == (3, 2)


def test_jobs_that_grow_take_turns_the_one_that_gains_most_first(plant):
    project = make_project(quota=16)
    bounds = {"min_workers": 1, "workers": 2, "max_workers": 8}
    jobs = {name: make_job(project, name, kind="elastic", **bounds) for name in ("long", "short")}
    programs = [Program(plant, job) for job in jobs.values()]

    def turn(times: int) -> None:
        for _ in range(times):
            plant.tick()
            for program in programs:
                program.act()

    turn(12)
    assert {one.attempt.job.name for one in Generation.objects.all()} == {"long", "short"}
    for name, seconds in (("long", 1_000), ("short", 100)):
        Job.objects.filter(pk=jobs[name].pk).update(pods_wanted=8, progress={"eta_seconds": seconds})
    turn(20)
    names = {job.pk: name for name, job in jobs.items()}
    grown = Event.objects.filter(kind="job.scaling").order_by("pk")
    turns = [(names[event.job_id], event.data["to"]) for event in grown]
    # Each at once as far as its share of what is free.
    assert turns == [("short", 8), ("long", 8)]


def test_what_a_job_wants_after_it_has_grown_back_is_growth(plant):
    program = started(plant, workers=3, fewest=2)
    lose_one(plant, program)
    assert live(program.job) == [0, 2, 3]
    Job.objects.filter(pk=program.job.pk).update(pods_wanted=4)
    program.settle()
    grown = ScaleOperation.objects.order_by("created_at")
    assert [(one.cause, one.to_workers) for one in grown] == [("recovery", 3), ("growth", 4)]


def lose_one(plant, program: Program) -> None:
    plant.engine.finish(f"{program.job.pk}-1-1", 137)
    plant.tick()
    program.in_seconds(15)


def test_it_grows_back_although_a_job_waits_that_could_not_use_the_place(plant):
    program = started(plant, workers=3, fewest=2, quota=1)
    make_job(make_project("team-b", gpu_limit_milli=0), "never")
    lose_one(plant, program)
    assert (plant.states()["never"], live(program.job)) == ("queued", [0, 2, 3])


@pytest.mark.parametrize(("quota", "ranks"), [(8, [0, 2, 3]), (1, [0, 2])])
def test_it_grows_back_inside_its_share_whatever_waits(plant, quota, ranks):
    program = started(plant, workers=3, fewest=2, quota=quota)
    theirs = make_project("team-b", quota=8)
    make_job(theirs, "full", gpus=8)
    make_job(theirs, "waits", gpus=8, preemptible=True)
    program.settle()
    lose_one(plant, program)
    assert (plant.states()["waits"], live(program.job)) == ("queued", ranks)


def test_below_its_minimum_the_attempt_fails(plant):
    program = started(plant, workers=3, fewest=2)
    for rank in (1, 2):
        plant.engine.finish(f"{program.job.pk}-1-{rank}", 3)
    program.settle()
    assert (program.job.state, program.job.exit_code) == ("failed", 3)


def test_a_frozen_worker_is_killed_and_the_rest_goes_on(plant):
    program = started(plant, workers=2)
    name = f"{program.job.pk}-1-1"
    frozen = plant.engine.said[name]
    plant.engine.said[name] = type(frozen)(frozen.text, 20.0)
    plant.tick()
    program.settle()
    assert (program.job.state, live(program.job), causes(program.job)[:2]) == (
        "running",
        [0],
        ["start", "loss"],
    )


def test_a_job_that_stops_meanwhile_gets_no_newcomers(plant, monkeypatch):
    program = started(plant)
    scale_job(program.job, 3, actor=SYSTEM)
    find = growth.spare_placements

    def find_and_stop(*arguments):
        stop_job(Job.objects.get(), actor=SYSTEM)
        return find(*arguments)

    monkeypatch.setattr(growth, "spare_placements", find_and_stop)
    plant.tick()
    assert Pod.objects.count() == 2


def test_a_job_that_stops_meanwhile_gets_no_generation(plant, monkeypatch):
    program = started(plant, workers=3)
    decide = membership.answer

    def decide_and_stop(standing):
        if (decided := decide(standing)) != membership.Answer():
            stop_job(Job.objects.get(), actor=SYSTEM)
        return decided

    monkeypatch.setattr(membership, "answer", decide_and_stop)
    plant.engine.finish(f"{program.job.pk}-1-1", 137)
    plant.tick()
    assert (Job.objects.get().state, causes(program.job)) == ("stopping", ["start"])


def test_a_spec_that_changes_meanwhile_is_kept(plant, monkeypatch):
    program = started(plant)
    decide = membership.answer

    def decide_and_change(standing):
        decided = decide(standing)
        if decided.outcome == "succeeded":
            Job.objects.update(spec=Job.objects.get().spec | {"env": {"NEW": "1"}})
        return decided

    monkeypatch.setattr(membership, "answer", decide_and_change)
    scale_job(program.job, 3, actor=SYSTEM)
    program.settle()
    assert (program.job.spec["workers"], program.job.spec["env"]) == (3, {"NEW": "1"})


FAILED_BEFORE = {"state": "failed", "payload": {"grace_seconds": 0}}
GRACEFUL = {"state": "pending", "payload": {"grace_seconds": 10}}


@pytest.mark.parametrize("order", [FAILED_BEFORE, GRACEFUL])
def test_an_order_to_end_is_repeated_when_it_failed_and_a_kill_does_not_wait(plant, order):
    program = started(plant)
    name = f"{program.job.pk}-1-1"
    about = {"kind": STOP_POD, "cluster": plant.cluster, "subject_kind": "pod", "subject_id": name}
    ended = plant.clock() - timedelta(minutes=1) if order["state"] == "failed" else None
    later = plant.clock() + timedelta(days=1)
    Command.objects.create(**about, **order, finished_at=ended, not_before=later)
    write_status(plant, program.job, 1, plant.engine.said[name].text, silent=20.0)
    plant.tick()
    program.settle()
    assert live(program.job) == [0]
    assert Command.objects.filter(kind=STOP_POD, subject_id=name).count() == 2


def test_an_operation_ends_with_its_attempt(plant):
    program = started(plant, cold={2})
    operation = scale_job(program.job, 3, actor=SYSTEM)
    program.settle()
    stop_job(program.job, actor=SYSTEM)
    program.settle()
    operation.refresh_from_db()
    assert (operation.state, operation.message) == ("failed", "The job is stopping.")
    assert (live(program.job), plant.allocated()) == ([], {})


def status(**fields: object) -> str:
    known = {"address": "h:1", "state": "training", "generation": 1, "busy_seconds": 0.1, "switches": []}
    return json.dumps({**known, "epochs_done": 0, "epochs_exact": 0, **fields})


NO_STATUS = ["", "{", "[]", '{"state": 1}', "[" * 5000, '{"switches": 3}', "\ufffd{}"]
INFINITE = [{"generation": math.inf}, {"epochs_done": math.inf}, {"busy_seconds": math.nan}]


@pytest.mark.parametrize("text", [*NO_STATUS, *(status(**fields) for fields in INFINITE)])
def test_what_a_pod_writes_that_is_no_status_is_taken_for_silence(plant, caplog, text):
    program = started(plant)
    write_status(plant, program.job, 0, text)
    plant.tick()
    assert causes(program.job) == ["start"]
    assert not caplog.records


def test_an_address_is_one_that_can_be_stored(plant, caplog):
    program = started(plant)
    write_status(plant, program.job, 0, status(address="h\0:1"))
    plant.engine.finish(f"{program.job.pk}-1-1", 137)
    plant.tick()
    assert Generation.objects.get(cause="loss").members == [{"id": 0, "address": "h:1"}]
    assert not caplog.records


def test_a_member_that_became_silent_keeps_its_address(plant, caplog):
    program = started(plant, workers=3)
    write_status(plant, program.job, 0, "{")
    plant.engine.finish(f"{program.job.pk}-1-1", 137)
    plant.tick()
    addresses = [member["address"] for member in Generation.objects.get(cause="loss").members]
    assert addresses == ["127.0.0.1:5000", "127.0.0.1:5002"]
    assert not caplog.records


def test_a_generation_that_is_replaced_before_all_have_entered_it_has_no_counts(plant):
    program = started(plant, workers=3)
    plant.engine.finish(f"{program.job.pk}-1-2", 137)
    plant.tick()
    write_status(plant, program.job, 0, status(state="broken", generation=2, is_stuck=True))
    plant.tick()
    program.settle()
    found = Generation.objects.order_by("number").values_list("cause", "lost_steps", "repeated_steps")
    assert list(found) == [("start", 0, 0), ("loss", None, None), ("reform", 0, 0)]
    assert Generation.objects.filter(switched_at=None).get().cause == "loss"


def test_a_job_whose_membership_cannot_be_kept_does_not_stop_the_others(plant, caplog, monkeypatch):
    program = started(plant)
    broken = make_job(program.job.project, "broken", kind="elastic", workers=2, max_workers=2)
    program.settle()
    exchange = plant.engine.exchange

    def fail(name: str, membership: str) -> MemberReport:
        if name.startswith(str(broken.pk)):
            raise OSError("disk")
        return exchange(name, membership)

    monkeypatch.setattr(plant.engine, "exchange", fail)
    scale_job(program.job, 3, actor=SYSTEM)
    program.settle()
    assert causes(program.job) == ["start", "grow"]
    assert {record.message for record in caplog.records} == {"the membership of job broken could not be kept"}


def test_a_training_that_is_over_ends_its_job(plant):
    program = started(plant)
    job = program.job
    for rank in (0, 1):
        plant.engine.finish(f"{job.pk}-1-{rank}", 0)
    program.settle()
    assert (job.state, causes(job)) == ("succeeded", ["start"])


def test_every_resize_takes_the_rows_in_one_order(plant):
    """Of two at once one would wait for the other's job, and that for its operation."""
    job = started(plant).job
    with transaction.atomic(), CaptureQueriesContext(connection) as asked:
        open_operation(job, requested_by="system", from_workers=2, to_workers=1, created_at=timezone.now())
    writes = [one["sql"].split()[0] for one in asked if one["sql"].startswith(("UPDATE", "INSERT"))]
    assert writes == ["UPDATE", "INSERT"], "the job, then its operation"
    assert job.state == "scaling"
