"""Workers move between elastic jobs of one project: to a job that waits, and to one that gains more by them."""

from __future__ import annotations

import pytest

from jobs.models import ScaleOperation
from tests.builders import make_job, make_project
from tests.loop.elastic_program import Program, live, started

pytestmark = pytest.mark.django_db
FLAT = {"1": 1.0, "2": 1.05, "4": 1.1, "8": 1.15, "16": 1.2}


def test_a_waiting_job_gets_workers_that_others_of_its_project_have_beyond_their_minimum(plant):
    program = started(plant, workers=16, most=16)
    waits = make_job(program.job.project, "waits", gpus=1, workers=2)
    program.in_seconds(90)
    waits.refresh_from_db()
    assert (waits.state, len(live(program.job))) == ("running", 14)
    operation = ScaleOperation.objects.get(cause="balance")
    assert (operation.state, operation.lost_steps, program.job.state) == ("succeeded", 0, "running")
    # It grows back by itself once that one has ended.
    for rank in range(2):
        plant.engine.finish(f"{waits.pk}-1-{rank}")
    program.in_seconds(30)
    assert len(live(program.job)) == 16


def test_workers_move_to_a_job_that_gains_more_by_them_and_stay_there(plant):
    bounds = {"min_workers": 1, "workers": 16, "max_workers": 16}
    project = make_project(quota=8)
    flat = Program(plant, make_job(project, "flat", kind="elastic", worker_speeds=FLAT, **bounds))
    flat.settle()
    steep = Program(plant, make_job(project, "steep", kind="elastic", **{**bounds, "workers": 12}))

    def sizes() -> dict[str, int]:
        return {one.job.name: len(live(one.job)) for one in (flat, steep)}

    def turn() -> None:
        plant.tick(5.0)
        flat.act()
        steep.act()

    # Some minutes of the plant's clock: each move rests for one.
    for _ in range(60):
        turn()
        if sizes() == {"flat": 4, "steep": 12}:
            break
    assert sizes() == {"flat": 4, "steep": 12}
    for _ in range(15):
        turn()
    assert sizes() == {"flat": 4, "steep": 12}
    assert {one.state for one in ScaleOperation.objects.filter(cause="balance")} == {"succeeded"}
    assert not ScaleOperation.objects.filter(state__in=("pending", "running")).exists()


def test_nothing_moves_for_a_job_that_may_not_run_or_while_another_project_waits(plant):
    program = started(plant, workers=16, most=16)
    project = program.job.project
    make_job(project, "elsewhere", gpus=1, node_pool="none")
    program.in_seconds(90)
    assert not ScaleOperation.objects.filter(cause="balance").exists()
    # A project without a share cannot take anything back, and waits before the first project's own job.
    theirs = make_job(make_project("team-b", quota=0), "theirs", gpus=4)
    make_job(project, "ours", gpus=1)
    program.in_seconds(90)
    theirs.refresh_from_db()
    assert (theirs.state, len(live(program.job))) == ("queued", 16)
    assert not ScaleOperation.objects.filter(cause="balance").exists()


def test_a_job_that_may_not_borrow_gives_nothing(plant):
    bounds = {"min_workers": 1, "workers": 16, "max_workers": 16, "preemptible": False}
    project = make_project(quota=16)
    fixed = Program(plant, make_job(project, "fixed", kind="elastic", **bounds))
    fixed.settle()
    make_job(project, "waits", gpus=1)
    fixed.in_seconds(90)
    assert not ScaleOperation.objects.exists()
