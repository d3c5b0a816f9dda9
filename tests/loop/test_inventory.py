"""What the engine says of nodes and devices, in rows and in the scheduler's view."""

from datetime import UTC, datetime

from django.utils import timezone

from controlplane.actions.clusters import settle_check
from controlplane.engines.kubernetes.node_suffix import with_suffix
from controlplane.engines.memory import MemoryEngine
from controlplane.loop.inventory import VANISHED, sync_nodes
from controlplane.loop.observe import observe
from controlplane.loop.reconcile import note_reachable
from controlplane.models import Cluster, Command, Device, Event, Node
from tests.builders import make_job, make_project
from tests.loop.plant import Plant

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def sync(plant: Plant) -> None:
    sync_nodes(plant.cluster, plant.engine, plant.clock())


def test_a_node_says_why_it_is_not_ready(plant):
    plant.engine.faults.nodes_down = frozenset({"dgx1-1"})
    sync(plant)
    node = Node.objects.get(name="dgx1-1")
    assert (node.is_ready, node.message) == (False, "The memory engine plays it down.")
    assert Event.objects.filter(kind="node.changed", message=node.message).exists()
    plant.engine.faults.nodes_down = frozenset()
    sync(plant)
    node.refresh_from_db()
    assert (node.is_ready, node.message) == (True, "")


def test_a_node_that_vanished_says_so(plant):
    Node.objects.update(seen_at=NOW)
    plant.engine._nodes = plant.engine._nodes[1:]
    sync(plant)
    node = Node.objects.get(name="dgx1-1")
    assert (node.message, node.seen_at) == (VANISHED, plant.clock())


def test_the_nodes_of_a_cluster_that_is_lost_were_seen_until_then(plant):
    Node.objects.update(seen_at=NOW)
    Node.objects.filter(name="dgx1-2").update(is_ready=False)
    before = timezone.now()
    note_reachable(plant.cluster, False, "No route.")
    ready, lost = Node.objects.order_by("name")
    assert ready.seen_at >= before
    assert lost.seen_at == NOW


def test_a_cluster_that_is_attached_twice_is_asked_about(plant):
    sync(plant)
    second = Cluster.objects.create(name="second", engine="memory")
    sync_nodes(second, MemoryEngine(plant.cluster.settings), plant.clock())
    second.refresh_from_db()
    assert f"Is it the same cluster as {plant.cluster.name}?" in second.checks[0]["message"]


def test_nodes_whose_names_another_cluster_has_are_left_out_and_that_is_told(plant):
    sync(plant)
    second = Cluster.objects.create(name="second", engine="memory", checks=[{"name": "api", "outcome": "ok"}])
    names = ("dgx1-1", "dgx1-2", "own-1")
    engine = MemoryEngine({"nodes": {name: {"devices": 1, "memory_mib": 1} for name in names}})
    for _ in range(2):
        second.refresh_from_db()
        sync_nodes(second, engine, plant.clock())
    assert [node.name for node in second.nodes.all()] == ["own-1"]
    second.refresh_from_db()
    _, check = second.checks
    assert (check["name"], check["outcome"]) == ("nodes", "warning")
    assert "2 of 3 nodes are left out" in check["message"]
    assert f"dgx1-1 (in {plant.cluster.name})" in check["message"]
    assert Event.objects.filter(kind="cluster.nodes_left_out").count() == 1  # told once
    Node.objects.filter(cluster=plant.cluster).delete()  # as when that cluster is detached
    sync_nodes(second, engine, plant.clock())
    second.refresh_from_db()
    assert [check["name"] for check in second.checks] == ["api"]
    assert {node.name for node in second.nodes.all()} == set(names)


def test_the_finding_says_how_nodes_are_told_apart_and_that_way_works(plant):
    sync(plant)
    second = Cluster.objects.create(name="prod2", engine="kubernetes")
    engine = MemoryEngine({"nodes": {"dgx1-1": {"devices": 1, "memory_mib": 1}}})
    sync_nodes(second, engine, plant.clock())
    assert second.checks[0]["message"].endswith("yard cluster edit prod2 --set node_suffix=prod2")
    sync_nodes(second, with_suffix(engine, "prod2"), plant.clock())
    assert [node.name for node in second.nodes.all()] == ["dgx1-1.prod2"]
    assert second.checks == []


def test_nodes_that_are_renamed_during_a_look_are_not_taken_over_under_their_old_names(db):
    cluster = Cluster.objects.create(name="prod2", engine="kubernetes")
    engine = MemoryEngine({"nodes": {"dgx1-1": {"devices": 1, "memory_mib": 1}}})
    sync_nodes(cluster, engine, NOW)
    order = Command(kind="check_cluster", cluster=cluster, payload={"settings": {"node_suffix": "prod2"}})

    class Overtaken:
        """A look, and before its answer is written the order that renames."""

        def nodes(self):
            reports = engine.nodes()
            order.save()
            settle_check(order, [], NOW)
            return reports

    assert not sync_nodes(cluster, Overtaken(), NOW)
    assert list(cluster.nodes.values_list("name", "is_ready")) == [("dgx1-1.prod2", True)]
    cluster.refresh_from_db()
    sync_nodes(cluster, with_suffix(engine, "prod2"), NOW)
    assert list(cluster.nodes.values_list("name", "is_ready")) == [("dgx1-1.prod2", True)]


def test_a_look_at_a_cluster_that_is_detached_meanwhile_leaves_no_nodes(plant):
    Cluster.objects.filter(pk=plant.cluster.pk).update(detached_at=plant.clock())
    Node.objects.all().delete()
    sync(plant)
    assert not Node.objects.exists()


def test_a_gpu_that_others_hold_gets_nothing(plant):
    plant.engine.faults.foreign = frozenset({("dgx1-1", 7), ("dgx1-2", 0)})
    sync(plant)
    assert Device.objects.filter(is_foreign=True).count() == 2
    project = make_project(quota=16)
    for number in range(16):
        make_job(project, f"job-{number}")
    plant.settle()
    assert list(plant.states().values()).count("running") == 14
    assert not Device.objects.filter(is_foreign=True, allocated_milli__gt=0).exists()
    plant.engine.faults.foreign = frozenset()
    sync(plant)
    plant.settle()
    assert list(plant.states().values()).count("running") == 16


def test_a_gpu_that_others_took_under_a_pod_of_ours_is_not_counted_twice(plant):
    make_job(make_project(), gpus=0.5)
    plant.settle()
    device = Device.objects.get(allocated_milli=500)
    plant.engine.faults.foreign = frozenset({(device.node.name, device.index)})
    sync(plant)
    view = observe(plant.cluster, plant.clock()).view
    node = next(node for node in view.nodes if node.name == device.node.name)
    assert node.devices[device.index].held_milli_gpus == 500  # beside the 500 of its job
    plant.settle()
    assert plant.states() == {"job": "running"}
