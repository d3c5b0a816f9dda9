"""Nodes that their provider takes away: elastic jobs shrink off them, the others leave with a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from controlplane.access import SYSTEM
from controlplane.actions.nodes import mark_pool, uncordon_node
from controlplane.loop.inventory import sync_nodes
from controlplane.models import Event, Node
from jobs.models import Job, Pod, ScaleOperation
from jobs.node_actions import interrupt_node
from jobs.scaling import Scaling, plan_scaling
from tests.builders import make_job, make_project
from tests.loop.elastic_program import Program


def elastic(plant, workers=12, fewest=1, **fields) -> Program:
    bounds = {"min_workers": fewest, "workers": workers, "max_workers": 16, **fields}
    program = Program(plant, make_job(make_project(quota=16), "el", kind="elastic", **bounds))
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
    program.settle(8)
    operation = ScaleOperation.objects.get(cause="spot")
    assert (operation.state, operation.leaving, operation.lost_steps) == ("succeeded", there, 0)
    assert operation.message == f"{node.name} is taken away by its provider."
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
        == f"{node.name} is taken away by its provider. It continues from its checkpoint elsewhere."
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
    program.settle(8)
    assert not ScaleOperation.objects.exists()
    assert (program.job.state, program.job.attempt) == ("queued", 1)


def test_after_a_change_that_does_not_end_in_time_the_whole_job_leaves(plant):
    program = elastic(plant, workers=12, fewest=1)
    node = smallest(program.job)
    ScaleOperation.objects.create(
        job=program.job, attempt=1, state="pending", cause="user", from_workers=12, to_workers=14
    )
    interrupt_node(node, 120, actor=SYSTEM)
    plant.in_seconds(80)
    program.job.refresh_from_db()
    assert (program.job.attempt, ranks_on(program.job, node) != []) == (1, True)
    plant.in_seconds(15)
    program.job.refresh_from_db()
    assert program.job.attempt == 2


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


def test_a_notice_of_the_nodes_own_cluster_is_taken_over_and_withdrawn(plant, monkeypatch):
    nodes = plant.engine.nodes()
    seen = (replace(nodes[0], interruption_seconds=120), *nodes[1:])
    monkeypatch.setattr(plant.engine, "nodes", lambda: seen)
    sync_nodes(plant.cluster, plant.engine, plant.clock())
    node = Node.objects.get(name=nodes[0].name)
    assert node.interruption_at is not None
    first = node.interruption_at
    plant.clock.advance(10)
    sync_nodes(plant.cluster, plant.engine, plant.clock())
    node.refresh_from_db()
    assert node.interruption_at == first
    assert Event.objects.filter(kind="node.interrupted").count() == 1
    monkeypatch.setattr(plant.engine, "nodes", lambda: nodes)
    sync_nodes(plant.cluster, plant.engine, plant.clock())
    node.refresh_from_db()
    assert node.interruption_at is None
    interrupt_node(node, 60, actor=SYSTEM)
    sync_nodes(plant.cluster, plant.engine, plant.clock())
    node.refresh_from_db()
    assert node.interruption_at is not None
