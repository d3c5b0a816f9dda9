"""Nodes that their provider takes away: elastic jobs shrink off them, the others leave with a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from controlplane.access import SYSTEM, Actor
from controlplane.actions.errors import Conflict
from controlplane.actions.nodes import mark_pool, uncordon_node
from controlplane.loop import cycle
from controlplane.loop.interruptions import hasten_owed
from controlplane.loop.inventory import sync_nodes
from controlplane.models import AuditEntry, Command, Event, Node
from controlplane.scheduling.plan import Hold, Plan, Share
from controlplane.scheduling.view import PodPlacement
from jobs import node_actions
from jobs.command_kinds import STOP_POD
from jobs.models import Job, Pod, ScaleOperation
from jobs.node_actions import interrupt_node
from jobs.scaling import Scaling, plan_scaling
from jobs.transitions import STOP_GRACE_SECONDS
from tests.builders import make_job, make_project, make_user
from tests.loop.elastic_program import Program


@pytest.fixture(autouse=True)
def notices_count_from_the_time_of_the_plant(plant, monkeypatch):
    """The machine's time goes on while the plant's stands."""
    monkeypatch.setattr(node_actions, "timezone", SimpleNamespace(now=plant.clock))


def elastic(plant, workers=12, fewest=1, quota=16) -> Program:
    bounds = {"min_workers": fewest, "workers": workers, "max_workers": 16}
    program = Program(plant, make_job(make_project(quota=quota), "el", kind="elastic", **bounds))
    program.settle()
    assert program.job.state == "running"
    return program


def ranks_on(job: Job, node: Node) -> list[int]:
    pods = Pod.objects.filter(job=job, node=node, released_at=None)
    return list(pods.order_by("rank").values_list("rank", flat=True))


def smallest(job: Job) -> Node:
    """The node with the fewest of the job's workers."""
    return min(Node.objects.all(), key=lambda node: len(ranks_on(job, node)))


def test_an_elastic_job_shrinks_off_the_node_and_goes_on(plant):
    program = elastic(plant)
    node = smallest(program.job)
    there = ranks_on(program.job, node)
    interrupt_node(node, 120, actor=SYSTEM)
    program.settle()
    operation = ScaleOperation.objects.get(cause="spot")
    assert (operation.state, operation.leaving, operation.lost_steps) == ("succeeded", there, 0)
    assert operation.message == f"{node.name} will be withdrawn by its provider."
    assert (program.job.state, program.job.attempt) == ("running", 1)
    assert ranks_on(program.job, node) == []
    event = Event.objects.get(kind="node.interrupted")
    assert (event.node_id, event.data["jobs"]) == (node.pk, 1)
    program.in_seconds(60)
    assert ranks_on(program.job, node) == []
    uncordon_node(node, actor=SYSTEM)
    program.in_seconds(60)
    assert len(ranks_on(program.job, node)) == len(there)


def test_workers_that_do_not_answer_are_stopped_before_the_node_goes(plant):
    program = elastic(plant)
    node = smallest(program.job)
    program.deaf.update(ranks_on(program.job, node))
    interrupt_node(node, 60, actor=SYSTEM)
    program.in_seconds(50)
    assert ranks_on(program.job, node) != []
    program.in_seconds(10)
    assert ranks_on(program.job, node) == []
    assert (program.job.state, program.job.attempt) == ("running", 1)


def test_the_others_save_a_checkpoint_and_are_queued_again(plant):
    job = make_job(make_project(quota=16), "train", gpus=2)
    notebook = make_job(job.project, "notebook", kind="interactive")
    plant.settle()
    plant.engine.faults.stop_delay_seconds = 100
    [node] = {pod.node for pod in Pod.objects.select_related("node")}
    interrupt_node(node, 120, actor=SYSTEM)
    plant.in_seconds(99)
    job.refresh_from_db()
    assert (job.state, job.next_state, job.reason) == ("stopping", "queued", "node_interrupted")
    assert (
        job.message
        == f"{node.name} will be withdrawn by its provider. It continues from its checkpoint elsewhere."
    )
    plant.in_seconds(6)
    for one in (job, notebook):
        one.refresh_from_db()
        assert (one.state, one.attempt, one.failures) == ("running", 2, 0)
        ended = Pod.objects.get(job=one, attempt__number=1)
        assert ended.exit_code == 143  # had its time, and was not killed
        assert ranks_on(one, node) == []


def test_an_elastic_job_that_would_be_below_its_minimum_leaves_as_a_whole(plant):
    program = elastic(plant, fewest=12)
    node = smallest(program.job)
    interrupt_node(node, 120, actor=SYSTEM)
    program.settle()
    assert not ScaleOperation.objects.exists()
    assert (program.job.state, program.job.attempt) == ("queued", 1)


def pending_growth(job: Job) -> ScaleOperation:
    return ScaleOperation.objects.create(
        job=job, attempt=1, state="pending", cause="user", from_workers=12, to_workers=14
    )


def test_a_change_that_waits_has_half_the_time_and_then_the_job_shrinks(plant):
    program = elastic(plant)
    node = smallest(program.job)
    growth = pending_growth(program.job)
    interrupt_node(node, 30, actor=SYSTEM)
    program.in_seconds(10)
    assert (program.job.attempt, ranks_on(program.job, node) != []) == (1, True)
    program.in_seconds(10)
    growth.refresh_from_db()
    assert growth.state == "rolled_back"
    assert ScaleOperation.objects.get(cause="spot").state == "succeeded"
    assert (program.job.state, program.job.attempt, ranks_on(program.job, node)) == ("running", 1, [])


def test_with_a_change_that_does_not_end_the_whole_job_leaves_in_time(plant, monkeypatch):
    program = elastic(plant)
    node = smallest(program.job)
    pending_growth(program.job)
    monkeypatch.setattr(cycle, "keep_memberships", lambda *_: None)
    interrupt_node(node, 120, actor=SYSTEM)
    plant.in_seconds(80)
    program.job.refresh_from_db()
    assert (program.job.attempt, ranks_on(program.job, node) != []) == (1, True)
    plant.in_seconds(15)
    program.job.refresh_from_db()
    assert program.job.attempt == 2


def test_a_notice_of_a_day_does_not_hold_off_what_is_owed(plant):
    program = elastic(plant, workers=15, quota=1)
    train = make_job(program.job.project, "train")
    program.settle()
    [node] = {pod.node for pod in Pod.objects.filter(job=train).select_related("node")}
    program.deaf.update(ranks_on(program.job, node))
    interrupt_node(node, 86_400, actor=SYSTEM)
    program.settle()
    operation = ScaleOperation.objects.get(cause="spot")
    assert operation.deadline is not None
    assert operation.deadline <= plant.clock() + timedelta(seconds=600)
    order = Command.objects.get(kind=STOP_POD, subject_id=f"{train.pk}-1-0")
    assert order.payload["grace_seconds"] == 600
    make_job(make_project("team-b", quota=8), "owed")
    program.in_seconds(45)
    assert (plant.states()["owed"], program.job.attempt) == ("running", 1)


@pytest.mark.parametrize(("quota", "grace"), [(8, STOP_GRACE_SECONDS), (0, 600)])
def test_what_is_owed_of_a_job_that_leaves_a_node_does_not_wait_for_its_long_grace(plant, quota, grace):
    gang = make_job(make_project(quota=8), "gang", kind="mpi", workers=2, gpus=8, command=["mpirun", "train"])
    plant.settle()
    plant.engine.faults.stop_delay_seconds = 3600
    [node, other] = Node.objects.order_by("name")
    interrupt_node(node, 86_400, actor=SYSTEM)
    plant.settle()
    gang.refresh_from_db()
    assert (gang.state, gang.reason) == ("stopping", "node_interrupted")
    waits = make_job(make_project("team-b", quota=quota), "owed")
    plant.settle()
    graces = {}
    for order in Command.objects.filter(kind=STOP_POD).order_by("pk"):
        graces.setdefault(order.subject_id, []).append(order.payload["grace_seconds"])
    assert {tuple(each) for each in graces.values()} == {(600, grace) if quota else (600,)}
    plant.in_seconds(45)
    waits.refresh_from_db()
    assert (waits.state == "running") == bool(quota)
    assert ranks_on(waits, other) == ([0] if quota else [])


def test_where_no_job_leaves_a_node_nothing_is_written_for_what_is_owed(plant, django_assert_num_queries):
    hold = Hold("owed", "team-b", "waits", {}, 1, is_promised=True)
    promised = {"owed": (PodPlacement(0, "node-1", ((0, 1000),)),)}
    plan = Plan(holds=(hold,), promised=promised, shares=(Share("team-b", 1000, 0, 1000),))
    with django_assert_num_queries(1):
        hasten_owed(plant.cluster, plan)


def test_graces_end_before_the_node_goes_also_after_a_sooner_notice(plant):
    job = make_job(make_project(quota=16), "train")
    plant.settle()
    plant.engine.faults.stop_delay_seconds = 3600
    node = Pod.objects.get().node
    interrupt_node(node, 3600, actor=SYSTEM)
    plant.settle()
    interrupt_node(node, 60, actor=SYSTEM)
    plant.settle()
    orders = Command.objects.filter(kind=STOP_POD).order_by("pk")
    first, second = (order.payload["grace_seconds"] for order in orders)
    assert (first, 50 <= second <= 55) == (600, True)
    plant.tick(56)
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.attempt, orders.count()) == ("running", 2, 2)


def test_workers_in_a_spot_pool_leave_first(plant):
    program = elastic(plant, workers=10)
    node = max(Node.objects.select_related("pool"), key=lambda node: len(ranks_on(program.job, node)))
    assert plan_scaling(program.job, Scaling(9)).leaving[0][0] not in ranks_on(program.job, node)
    pool = node.pool
    assert pool is not None
    other = type(pool).objects.create(cluster=pool.cluster, name="other")
    Node.objects.exclude(pk=node.pk).update(pool=other)
    mark_pool(pool, True, actor=SYSTEM)
    [(rank, why)] = plan_scaling(program.job, Scaling(9)).leaving
    assert (rank in ranks_on(program.job, node), why) == (True, f"{node.name} is a spot node")


@pytest.fixture
def says(plant, monkeypatch):
    """Have the cluster say that its first node is taken away in so many seconds, None for no more; return the node."""
    nodes = plant.engine.nodes()

    def say(seconds: int | None) -> Node:
        seen = (replace(nodes[0], interruption_seconds=seconds), *nodes[1:])
        monkeypatch.setattr(plant.engine, "nodes", lambda: seen)
        sync_nodes(plant.cluster, plant.engine, plant.clock())
        return Node.objects.get(name=nodes[0].name)

    return say


def test_a_notice_of_the_nodes_own_cluster_is_taken_over_and_withdrawn(plant, says):
    first = says(120).interruption_at
    assert first is not None
    plant.clock.advance(10)
    assert says(120).interruption_at == first
    assert Event.objects.filter(kind="node.interrupted").count() == 1
    node = says(None)
    assert node.interruption_at is None
    assert Event.objects.filter(kind="node.notice_withdrawn", node_id=node.pk).count() == 1
    interrupt_node(node, 60, actor=SYSTEM)
    assert says(None).interruption_at is not None
    assert Event.objects.filter(kind="node.notice_withdrawn").count() == 1


def test_the_clusters_notice_counts_where_it_is_sooner(plant, says):
    program = elastic(plant, workers=16)
    node = Node.objects.get(name="dgx1-1")
    program.deaf.update(ranks_on(program.job, node))
    interrupt_node(node, 3600, actor=SYSTEM)
    program.settle()
    later = Node.objects.get(pk=node.pk).interruption_at
    assert says(7200).interruption_at == later
    node = says(120)
    assert (node.interruption_at, node.interruption_by) == (plant.clock() + timedelta(seconds=120), "")
    program.settle()
    operation = ScaleOperation.objects.get(cause="spot")
    assert operation.deadline == plant.clock() + timedelta(seconds=115)


def test_only_a_notice_that_was_given_here_is_withdrawn_here(plant, says):
    node = says(120)
    with pytest.raises(Conflict, match="its cluster"):
        uncordon_node(node, actor=SYSTEM)
    assert Node.objects.get(pk=node.pk).interruption_at is not None
    node = says(None)
    interrupt_node(node, 60, actor=SYSTEM)
    Event.objects.all().delete()
    uncordon_node(node, actor=Actor(user=make_user("root", is_admin=True)))
    assert (node.interruption_at, node.is_cordoned) == (None, False)
    assert {event.kind for event in Event.objects.filter(node_id=node.pk)} == {
        "node.uncordoned",
        "node.notice_withdrawn",
    }
    assert AuditEntry.objects.filter(verb="node.withdraw_notice", object_name=node.name).count() == 1
