"""Reclaims of elastic jobs that follow their membership: what changes meanwhile, and what is below the minimum."""

from __future__ import annotations

import json

import pytest

from controlplane.access import SYSTEM
from controlplane.actions.errors import Invalid
from controlplane.loop import shrinking
from controlplane.loop.telemetry_step import collect_once
from controlplane.models import Event, Project
from jobs.actions import stop_job
from jobs.models import Generation, Job, Pod, ScaleOperation
from jobs.scaling import Scaling, plan_scaling, scale_job
from tests.builders import make_job, make_project
from tests.loop.elastic_program import Program


def started(plant, workers=16, fewest=1, **fields) -> Program:
    bounds = {"min_workers": fewest, "workers": workers, "max_workers": 16, **fields}
    program = Program(plant, make_job(make_project(quota=8), "el", kind="elastic", **bounds))
    program.settle()
    assert program.job.state == "running"
    return program


def ranks(job: Job) -> list[int]:
    return [member["id"] for member in Generation.objects.filter(attempt__job=job).latest("number").members]


def members(job: Job) -> int:
    return len(ranks(job))


@pytest.fixture
def before_it_begins(monkeypatch):
    """Have something happen after a reclaim was decided and before its operation is written."""
    begin = shrinking.begin_shrink

    def arrange(happen) -> None:
        def happen_and_begin(*arguments):
            happen()
            return begin(*arguments)

        monkeypatch.setattr(shrinking, "begin_shrink", happen_and_begin)

    return arrange


def test_a_job_that_stops_meanwhile_is_not_shrunk(plant, before_it_begins):
    program = started(plant)
    before_it_begins(lambda: stop_job(Job.objects.get(name="el"), actor=SYSTEM))
    make_job(make_project("team-b", quota=8), "owed")
    plant.tick()
    assert not ScaleOperation.objects.exists()
    plant.settle()
    program.job.refresh_from_db()
    assert (program.job.state, plant.states()["owed"]) == ("stopped", "running")


def test_an_operation_that_was_opened_meanwhile_is_kept(plant, before_it_begins, caplog):
    program = started(plant)
    before_it_begins(lambda: scale_job(Job.objects.get(name="el"), 10, actor=SYSTEM))
    make_job(make_project("team-b", quota=8), "owed")
    plant.tick()
    assert "failed" not in caplog.text  # the cycle
    [operation] = ScaleOperation.objects.all()
    assert (operation.cause, operation.to_workers) == ("user", 10)
    program.settle()
    assert plant.states() == {"el": "running", "owed": "running"}


def test_below_its_minimum_it_stops_with_a_checkpoint_and_continues_from_it(plant):
    program = started(plant, workers=16, fewest=16)
    make_job(make_project("team-b", quota=8), "owed")
    plant.engine.faults.stop_delay_seconds = 3
    program.settle()
    assert (program.job.state, program.job.next_state) == ("stopping", "queued")
    name = Pod.objects.get(job=program.job, rank=0).name
    plant.engine.print_line(name, json.dumps({"trainyard": 1, "checkpoint_at": 9, "checkpoint_step": 1200}))
    plant.in_seconds(5)
    collect_once(plant.clock())
    program.job.refresh_from_db()
    assert (program.job.state, plant.states()["owed"]) == ("queued", "running")
    assert program.job.progress["checkpoint_step"] == 1200
    assert set(Pod.objects.filter(job=program.job).values_list("exit_code", flat=True)) == {143}
    assert not ScaleOperation.objects.exists()
    assert Event.objects.get(kind="job.stopping", job_id=program.job.pk).data["cause"] == "reclaim"
    stop_job(Job.objects.get(name="owed"), actor=SYSTEM)
    plant.in_seconds(5)
    program.settle()
    assert (program.job.state, program.job.attempt) == ("running", 2)


def test_its_size_is_always_an_allowed_one(plant):
    program = started(plant, worker_sizes=[1, 4, 8, 16])
    make_job(make_project("team-b", quota=8), "owed")
    program.settle()
    # 15 are left of 16
    assert (members(program.job), plant.states()["owed"]) == (8, "running")
    [operation] = ScaleOperation.objects.all()
    assert (operation.state, len(operation.leaving)) == ("succeeded", 8)
    lost = ranks(program.job)[-1]
    plant.engine.finish(Pod.objects.get(job=program.job, attempt__number=1, rank=lost).name, 137)
    program.settle()
    # 7 survive a loss; the others are sent away
    assert members(program.job) == 4
    assert Pod.objects.filter(job=program.job, released_at=None).count() == 4
    stop_job(Job.objects.get(name="owed"), actor=SYSTEM)
    make_job(Project.objects.get(name="team-b"), "other", gpus=5)
    plant.settle()
    program.in_seconds(30)
    # 11 are free
    assert (members(program.job), plant.states()["other"]) == (8, "running")
    with pytest.raises(Invalid, match="nearest to 5: 4 and 8"):
        plan_scaling(program.job, Scaling(5))
    assert plan_scaling(program.job, Scaling(4)).to_workers == 4
