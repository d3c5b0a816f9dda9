"""Workers move between elastic jobs of one project: to a job that waits, and to one that gains more by them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from controlplane.loop import cycle
from controlplane.loop.balance import FOR_RUNNING, FOR_WAITING, rest_before_move
from controlplane.models import Node, NodePool
from datasets.models import Volume
from jobs.models import Job, ScaleOperation
from tests.builders import make_job, make_project
from tests.loop.elastic_program import Program, live, started
from tests.loop.plant import Plant
from tests.volumes import make_volume

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


def test_nobody_leaves_for_a_job_before_the_end_of_its_back_off(plant):
    program = started(plant, workers=16, most=16)
    waits = make_job(program.job.project, "waits", gpus=1)
    Job.objects.filter(pk=waits.pk).update(not_before=plant.clock() + timedelta(minutes=5))
    program.in_seconds(120)
    assert not ScaleOperation.objects.filter(cause="balance").exists()
    program.in_seconds(300)
    waits.refresh_from_db()
    assert (waits.state, len(live(program.job))) == ("running", 15)


def test_nobody_leaves_while_jobs_of_several_projects_wait(plant):
    program = started(plant, workers=16, most=16)
    make_job(program.job.project, "waits", gpus=1)
    make_job(make_project("others", quota=0), "waits-too", gpus=1)
    program.in_seconds(90)
    assert not ScaleOperation.objects.filter(cause="balance").exists()


@dataclass
class Two:
    """Two elastic jobs of a project on 16 GPUs: one that gains nothing by most of its workers, and one that would."""

    plant: Plant
    flat: Program
    steep: Program

    def sizes(self) -> dict[str, int]:
        return {one.job.name: len(live(one.job)) for one in (self.flat, self.steep)}

    def turn(self, until: dict[str, int] | None = None, times: int = 30) -> dict[str, int]:
        """Let 10 s pass so many times, or until the jobs have these sizes."""
        for _ in range(times):
            self.plant.tick(10.0)
            self.flat.act()
            self.steep.act()
            if self.sizes() == until:
                break
        return self.sizes()


def two(plant, *, eta: float | None = 36_000.0, steep: int = 12, quota: int = 8, **fields: object) -> Two:
    """`steep`: how many workers it may have. It has got its first from the other one."""
    bounds = {"min_workers": 1, "workers": 16, "max_workers": 16}
    project = make_project(quota=quota)
    flat = Program(plant, make_job(project, "flat", kind="elastic", worker_speeds=FLAT, **bounds))
    flat.settle()
    bounds["workers"] = steep
    found = Two(plant, flat, Program(plant, make_job(project, "steep", kind="elastic", **bounds, **fields)))
    assert found.turn({"flat": 15, "steep": 1}, 15) == {"flat": 15, "steep": 1}
    if eta is not None:
        Job.objects.update(progress={"eta_seconds": eta})
    return found


def given() -> int:
    return ScaleOperation.objects.filter(cause="balance").count()


def test_workers_move_to_a_job_that_gains_more_by_them_and_stay_there(plant):
    jobs = two(plant)
    assert jobs.turn({"flat": 4, "steep": 12}, 75) == {"flat": 4, "steep": 12}
    assert jobs.turn(times=8) == {"flat": 4, "steep": 12}
    assert {one.state for one in ScaleOperation.objects.filter(cause="balance")} == {"succeeded"}
    assert not ScaleOperation.objects.filter(state__in=("pending", "running")).exists()


def test_nothing_moves_between_jobs_that_do_not_report_how_long_they_will_take(plant):
    assert two(plant, eta=None).turn(times=15) == {"flat": 15, "steep": 1}


def test_nothing_moves_while_a_job_of_the_project_waits_that_cannot_be_served(plant):
    jobs = two(plant)
    # Each of the two jobs keeps a worker on a node.
    make_job(jobs.flat.job.project, "waits", gpus=8, workers=2)
    assert jobs.turn(times=15) == {"flat": 15, "steep": 1}
    assert given() == 1


@pytest.mark.parametrize("gpus", [2, 4])
def test_a_node_is_left_for_a_pod_that_has_no_room_on_any(plant, gpus):
    """A free GPU on each of two nodes: the cluster has two, and no node has them."""
    bounds = {"min_workers": 1, "workers": 7, "max_workers": 7}
    project = make_project(quota=8)
    programs = [Program(plant, make_job(project, "a", kind="elastic", **bounds))]
    programs[0].settle()
    # It keeps the workers of the second job off the first node.
    fill = make_job(project, "fill", gpus=1)
    plant.settle()
    programs.append(Program(plant, make_job(project, "b", kind="elastic", **bounds)))
    programs[1].settle()
    plant.engine.finish(f"{fill.pk}-1-0")
    waits = make_job(project, "waits", gpus=gpus)

    def turn(times: int, seconds: float = 5.0) -> None:
        for _ in range(times):
            plant.tick(seconds)
            for program in programs:
                program.act()

    turn(18)
    waits.refresh_from_db()
    # What is left over on the other node goes back to the jobs by growth.
    assert (waits.state, sum(len(live(one.job)) for one in programs)) == ("running", 16 - gpus)
    given = ScaleOperation.objects.filter(cause="balance")
    assert {(one.state, one.lost_steps) for one in given} == {("succeeded", 0)}
    count = ScaleOperation.objects.count()
    turn(12, 10.0)
    assert ScaleOperation.objects.count() == count


def test_a_job_that_another_project_stopped_gets_workers_of_its_own_project(plant):
    other = NodePool.objects.create(cluster=plant.cluster, name="other")
    Node.objects.filter(name="dgx1-2").update(pool=other)
    program = started(plant, workers=8, most=8)
    lent = make_job(program.job.project, "lent", gpus=4)
    theirs = make_project("team-b", quota=8)
    for name in ("first", "second"):
        make_job(theirs, name, gpus=4, node_pool="other")
        plant.settle()
    lent.refresh_from_db()
    assert (lent.state, lent.reason) == ("queued", "preempted")
    program.in_seconds(90)
    lent.refresh_from_db()
    assert (lent.state, len(live(program.job))) == ("running", 4)


def test_a_job_takes_nothing_that_its_quota_does_not_allow(plant):
    jobs = two(plant, quota=1, preemptible=False)
    assert jobs.turn(times=20) == {"flat": 15, "steep": 1}
    assert given() == 1


def test_each_move_lets_a_job_rest_twice_as_long():
    moves = [("succeeded", FOR_RUNNING)] * 3
    assert [rest_before_move(moves[:count]).total_seconds() for count in range(4)] == [60, 120, 240, 480]
    assert rest_before_move([("succeeded", FOR_WAITING)]).total_seconds() == 60


def test_a_reclaim_lets_a_move_end_and_shrinks_the_job_afterwards(plant):
    program = started(plant, workers=16, most=16)
    program.deaf.update(range(16))
    make_job(program.job.project, "waits", gpus=1, workers=2)
    for _ in range(30):
        plant.tick(5.0)
        program.act()
        if given():
            break
    theirs = make_job(make_project("team-b", quota=8), "theirs", gpus=4)
    for _ in range(30):
        plant.tick(5.0)
        program.act()
    for one in (program.job, theirs):
        one.refresh_from_db()
    assert (program.job.state, program.job.attempt, theirs.state) == ("running", 1, "running")
    causes = ScaleOperation.objects.order_by("created_at").values_list("cause", flat=True)
    assert list(causes)[:2] == ["balance", "reclaim"]


@pytest.mark.usefixtures("own_volumes")
def test_a_job_whose_volume_lost_its_claim_keeps_nobody_from_growing(plant):
    program = started(plant, workers=2, most=4)
    theirs = make_project("team-b")
    make_volume(theirs)
    make_job(theirs, "waits", gpus=1, volumes=[{"volume": "data", "mount_path": "/mnt"}])
    Volume.objects.update(state="failed", reason="claim_deleted")
    Job.objects.filter(pk=program.job.pk).update(pods_wanted=4)
    program.in_seconds(30)
    assert len(live(program.job)) == 4


def test_a_job_that_does_not_report_its_members_keeps_nobody_from_being_served(plant):
    program = started(plant, workers=14, most=14)
    project = program.job.project
    make_job(project, "plain", kind="elastic", min_workers=2, workers=2, max_workers=2)
    plant.tick(5.0)
    waits = make_job(project, "waits", gpus=1)
    program.in_seconds(90)
    waits.refresh_from_db()
    assert (waits.state, len(live(program.job))) == ("running", 13)


def test_a_job_that_could_not_give_grows_without_delay(plant):
    program = started(plant, workers=2, most=4)
    Job.objects.filter(pk=program.job.pk).update(pods_wanted=4)
    ScaleOperation.objects.create(
        job=program.job, attempt=1, state="rolled_back", cause="balance", from_workers=2, to_workers=1,
        finished_at=plant.clock(),
    )  # fmt: skip
    plant.tick(1.0)
    assert ScaleOperation.objects.filter(cause="growth").exists()


def test_nobody_shrinks_for_a_job_that_lacks_the_workers_of_one_that_cannot(plant):
    bounds = {"min_workers": 1, "workers": 8, "max_workers": 8}
    project = make_project(quota=8)
    programs = [Program(plant, make_job(project, name, kind="elastic", **bounds)) for name in ("a", "b")]
    for program in (*programs, *programs):
        program.settle()
    ScaleOperation.objects.create(
        job=programs[0].job, attempt=1, state="rolled_back", cause="balance", from_workers=8, to_workers=4
    )
    make_job(project, "waits", gpus=1, workers=10)
    for program in programs:
        program.in_seconds(60)
    assert given() == 1


def test_idle_gpus_of_another_pool_serve_nobody_in_this_one(plant):
    other = NodePool.objects.create(cluster=plant.cluster, name="other")
    Node.objects.filter(name="dgx1-2").update(pool=other)
    bounds = {"min_workers": 1, "workers": 8, "max_workers": 8}
    project = make_project(quota=8)
    program = Program(plant, make_job(project, "el", kind="elastic", node_pool="default", **bounds))
    program.settle()
    waits = make_job(project, "waits", gpus=1, node_pool="default")
    program.in_seconds(90)
    waits.refresh_from_db()
    assert (waits.state, len(live(program.job))) == ("running", 7)


def test_a_failure_of_the_division_does_not_stop_the_pass(plant, monkeypatch, caplog):
    program = started(plant, workers=2, most=4)
    Job.objects.filter(pk=program.job.pk).update(pods_wanted=4)

    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(cycle, "grow_jobs", fail)
    plant.tick(5.0)
    assert "could not be resized" in caplog.text


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
