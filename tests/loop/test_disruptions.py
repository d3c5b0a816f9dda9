"""What a cluster does to pods: the job goes back to the queue, in words, and starts again."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controlplane.access import SYSTEM, Actor
from controlplane.actions.clusters import detach_cluster
from controlplane.actions.errors import Conflict
from controlplane.actions.nodes import uncordon_node
from controlplane.actions.projects import delete_project
from controlplane.engines.base import PodReport
from controlplane.loop.inventory import sync_nodes
from controlplane.loop.observe import AVOID_SECONDS, observe
from controlplane.loop.reconcile import reconcile
from controlplane.models import Command, Event, Node, Sample
from controlplane.scheduling.reasons import describe
from controlplane.telemetry.metrics import GPUS_ALLOCATED
from jobs.actions import stop_job
from jobs.models import Attempt, Job, Pod
from jobs.node_actions import confirm_dead
from jobs.queries import job_detail
from tests.builders import make_job, make_project, make_user
from tests.loop.plant import Plant


def running(plant: Plant, **body) -> Job:
    job = make_job(make_project(quota=8), **body)
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"
    return job


def evict(plant: Plant, rank: int = 0, reason: str = "evicted") -> None:
    pod = Pod.objects.get(rank=rank, released_at=None)
    plant.engine.finish(pod.name, 137, reason, "The node was low on memory")


def test_an_evicted_job_starts_again_and_keeps_its_retries(plant):
    job = running(plant, retries=2)
    evict(plant)
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.failures) == ("running", 2, 0)
    first = Attempt.objects.get(number=1)
    assert (first.outcome, first.reason) == ("disrupted", "evicted")
    assert first.message == "The node was low on memory. It starts again as soon as there is room."


def test_a_disrupted_job_that_waits_for_its_next_start_has_no_run_time(plant):
    job = running(plant)
    assert job_detail(job)["status"]["runtime_seconds"] == 0
    evict(plant)
    Node.objects.update(is_cordoned=True)
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job_detail(job)["status"]["runtime_seconds"]) == ("queued", None)


def test_an_attempt_that_is_starting_has_no_work_of_the_one_before_to_lose(plant):
    job = running(plant)
    plant.tick(seconds=3600)
    evict(plant)
    plant.tick()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("starting", 2)
    assert observe(plant.cluster, plant.clock()).view.jobs[0].started_at is None
    plant.settle()
    assert observe(plant.cluster, plant.clock()).view.jobs[0].started_at == int(plant.clock().timestamp())


def test_a_job_goes_elsewhere_for_a_minute_after_a_node_refused_it(plant):
    job = running(plant)
    (first, other) = (Pod.objects.get().node.name, "dgx1-2")
    assert first == "dgx1-1"
    evict(plant, reason="unschedulable")
    plant.settle()
    assert Pod.objects.get(job=job, released_at=None).node.name == other
    assert list(observe(plant.cluster, plant.clock()).view.jobs[0].avoid) == []  # it is placed
    evict(plant, reason="unschedulable")
    plant.tick()
    assert observe(plant.cluster, plant.clock()).view.jobs[0].avoid == (first, other)
    later = plant.clock() + timedelta(seconds=AVOID_SECONDS + 1)
    assert observe(plant.cluster, later).view.jobs[0].avoid == ()


def test_a_job_that_is_disrupted_every_time_waits_longer_and_says_why(plant):
    job = running(plant)
    for _ in range(3):
        evict(plant, reason="unschedulable")
        plant.settle()
        plant.in_seconds(11)
    job.refresh_from_db()
    assert (job.state, job.reason, job.failures) == ("queued", "backing_off", 0)
    assert job.message.startswith("The node was low on memory. It starts again at ")
    assert job.details["disrupted_by"] == "unschedulable"
    plant.in_seconds(21)
    job.refresh_from_db()
    assert job.state == "running"
    plant.tick(601)
    evict(plant)  # long after: it had settled in
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"


@pytest.mark.parametrize("code", ["no_such_node", "no_such_device"])
def test_a_job_that_was_sent_to_what_is_no_more_goes_elsewhere(plant, code):
    plant.engine.faults.start_refusal = (code, "There is no node 'dgx1-1'.")
    job = make_job(make_project(quota=8))
    plant.tick()
    plant.engine.faults.start_refusal = None
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.failures) == ("running", 0)
    first = Attempt.objects.get(number=1)
    assert (first.outcome, first.reason) == ("disrupted", code)
    assert first.message == "There is no node 'dgx1-1'. It starts again as soon as there is room."


def test_a_gang_goes_back_whole_once_every_old_pod_is_gone(plant):
    job = running(plant, workers=3)
    plant.engine.faults.stop_delay_seconds = 4
    evict(plant, rank=1)
    plant.tick()
    job.refresh_from_db()
    assert (job.state, job.next_state, job.reason) == ("stopping", "queued", "evicted")
    plant.tick(1)
    assert Pod.objects.filter(attempt__number=2).count() == 0
    plant.in_seconds(6)
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("running", 2)
    assert Pod.objects.filter(released_at=None).count() == 3


def test_a_disrupted_job_that_is_being_stopped_is_stopped(plant):
    job = running(plant)
    plant.engine.faults.stop_delay_seconds = 4
    stop_job(job, actor=SYSTEM)
    plant.tick()
    evict(plant)
    plant.settle()
    job.refresh_from_db()
    assert job.state == "stopped"


def test_a_starting_job_shows_what_it_waits_for_until_it_runs(plant):
    plant.engine.faults.start_waits = ("pulling_image", "Pulling image registry/train:1 (2 GB)")
    job = make_job(make_project(), "big-image")
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason) == ("starting", "pulling_image")
    assert job.message == "Pulling image registry/train:1 (2 GB)."
    assert Event.objects.filter(kind="job.starting", message=job.message).count() == 1
    plant.engine.faults.start_waits = None
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason) == ("running", "started_in_quota")
    assert job.message == describe("started_in_quota", job.details)
    assert "started" not in job.details


# An operator says that a node is dead


def confirm_first_node_dead(plant: Plant) -> Node:
    plant.engine.faults.nodes_down = frozenset({"dgx1-1"})
    sync_nodes(plant.cluster, plant.engine, plant.clock())
    node = Node.objects.get(name="dgx1-1")
    confirm_dead(node, actor=Actor(user=make_user("root", is_admin=True)))
    return node


def test_a_dead_nodes_job_goes_on_elsewhere_only_after_the_operators_word(plant):
    job = running(plant, gpus=8)
    plant.engine.faults.nodes_down = frozenset({"dgx1-1"})
    plant.in_seconds(30)
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("running", 1)  # a node that does not answer frees nothing
    confirm_first_node_dead(plant)
    plant.tick()
    plant.tick()
    job.refresh_from_db()
    assert (job.state, job.attempt, Pod.objects.get(released_at=None).node.name) == ("running", 2, "dgx1-2")
    first = Attempt.objects.get(number=1)
    assert (first.outcome, first.reason) == ("disrupted", "node_lost")
    assert "root confirmed that dgx1-1 is dead." in first.message


def test_a_cluster_that_never_comes_back_can_be_given_up(plant):
    job, root = running(plant, gpus=8), Actor(user=make_user("root", is_admin=True))
    plant.engine.faults.is_unreachable = True
    plant.tick()
    plant.cluster.refresh_from_db()
    stop_job(job, actor=root)
    with pytest.raises(Conflict, match=r"confirm that their nodes are dead \(dgx1-1\)"):
        detach_cluster(plant.cluster, actor=root)
    confirm_dead(Node.objects.get(name="dgx1-1"), actor=root)
    plant.tick()
    job.refresh_from_db()
    assert (job.state, Pod.objects.filter(released_at=None).count()) == ("stopped", 0)
    delete_project(job.project, actor=root)
    detach_cluster(plant.cluster, actor=root)


def test_the_allocation_chart_falls_with_the_operators_word(plant):
    running(plant, gpus=8)
    confirm_first_node_dead(plant)
    points = Sample.objects.filter(metric=GPUS_ALLOCATED).order_by("by", "at")
    assert [(point.by, point.total) for point in points] == [
        ("cluster", 8),
        ("cluster", 0),
        ("project", 8),
        ("project", 0),
    ]


def test_a_node_that_comes_back_gets_nothing_until_its_old_pods_are_gone(plant):
    old = running(plant, gpus=8)
    plant.engine.faults.stop_delay_seconds = 3600  # nothing of a dead node ends
    node = confirm_first_node_dead(plant)
    plant.settle()
    waiting = make_job(old.project, "waiting", gpus=8, kind="train")
    plant.engine.faults.nodes_down = frozenset()
    uncordon_node(node, actor=Actor(user=make_user("root", is_admin=True)))
    sync_nodes(plant.cluster, plant.engine, plant.clock())
    plant.in_seconds(3)
    waiting.refresh_from_db()
    assert waiting.state == "queued"
    plant.in_seconds(10)  # the stray's grace is over
    waiting.refresh_from_db()
    assert (waiting.state, Pod.objects.get(job=waiting, released_at=None).node.name) == ("running", "dgx1-1")


def test_the_node_of_a_stray_without_a_row_gets_nothing_new(plant):
    """As after the restore of an older database: only the engine knows where such a pod is."""
    orphan = PodReport("1-1-0", "running", node="dgx1-2")
    plant.engine.pods = lambda: (orphan,)
    assert reconcile(plant.cluster, plant.engine, plant.clock()) == {"dgx1-2"}
    plant.engine.pods = lambda: (replace(orphan, is_proven_gone=True),)
    assert reconcile(plant.cluster, plant.engine, plant.clock()) == frozenset()


def test_a_stray_that_does_not_end_is_not_ordered_to_every_second(plant, monkeypatch):
    running(plant)
    monkeypatch.setattr(plant.engine, "stop", lambda *_: None)  # its node is dead: nobody hears it
    confirm_first_node_dead(plant)
    stops = Command.objects.filter(kind="stop_pod")
    plant.in_seconds(20)
    assert stops.count() == 1
    plant.in_seconds(20)
    assert stops.count() > 1
