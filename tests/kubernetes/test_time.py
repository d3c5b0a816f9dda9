"""Time that passes while nobody looks, and clocks that do not agree: what runs goes on, and every wait stays sane."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.commands.registry import handler_for
from controlplane.commands.run import CommandRun
from controlplane.engines import base
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.reports import BIND_SECONDS, NODE_GONE_SECONDS
from controlplane.loop.cluster_context import context_of
from controlplane.loop.cycle import run_cycle
from controlplane.models import Command
from jobs.models import Attempt, Job, Pod
from tests.builders import make_job
from tests.kube import KubeCluster
from tests.kubernetes.by_hand import Yard, devices, own, put_forward, started
from tests.kubernetes.proxy import FaultProxy, fault_proxy
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
HOUR = timedelta(hours=1)
Raw = dict[str, Any]
LONG_AGO = timezone.now() - timedelta(days=1)


@pytest.fixture
def proxy(kube: KubeCluster) -> Iterator[FaultProxy]:
    with fault_proxy(kube) as proxy:
        yield proxy


@pytest.fixture
def yard(kube: KubeCluster, proxy: FaultProxy, tmp_path: Path) -> Iterator[Yard]:
    """Its way to the cluster tells of a cluster whose clock can be wrong."""
    yard = Yard(kube, tmp_path, access=proxy.access(), **own())
    yield yard
    proxy.ahead = yard.ahead = timedelta()
    yard.close()


def attempts(job: Job) -> list[tuple[int, str]]:
    return list(Attempt.objects.filter(job=job).order_by("number").values_list("number", "outcome"))


def test_an_hour_away_changes_nothing_for_what_runs_and_all_else_is_adopted(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard.add_node(gpus=5)
    project = yard.project(quota=16)
    jobs = {name: make_job(project, name) for name in ("stays", "ends", "fails", "deleted", "over")}
    Job.objects.filter(name="over").update(max_runtime_seconds=1800)
    started(yard, *jobs.values())
    lost_at = yard.add_node(gpus=1)
    jobs["lost"] = make_job(project, "lost")
    started(yard, jobs["lost"])
    yard.add_node(gpus=4)
    held, paths = devices(jobs["stays"]), {name: yard.path_of(job) for name, job in jobs.items()}
    late = make_job(project, "late")
    order = the_last_order_of_a_process(yard, late)
    handler_for(order.kind).run(CommandRun(order, "", yard.cluster))
    Command.objects.filter(pk=order.pk).update(state=Command.CLAIMED, claim_expires_at=LONG_AGO)

    yard.engine.close()
    namespace, server = f"{yard.prefix}{project.name}", yard.kube
    server.end_pod(namespace, paths["ends"].rpartition("/")[2])
    server.end_pod(namespace, paths["fails"].rpartition("/")[2], 3)
    server.api("DELETE", paths["deleted"])
    server.must("DELETE", f"/api/v1/nodes/{lost_at}")
    yard.ahead = HOUR

    yard.restart()
    yard.until_is(jobs["ends"], "succeeded")
    yard.until_is(jobs["fails"], "failed", base.EXIT_CODE)
    yard.until_is(jobs["over"], "timed_out", "max_runtime")
    yard.until_is(late, "running")
    yard.until(lambda: attempts(jobs["deleted"])[0][1] != "", "the deleted pod's end")
    yard.until_is(jobs["deleted"], "running")
    jobs["lost"].refresh_from_db()
    assert (jobs["lost"].state, attempts(jobs["lost"])) == ("running", [(1, "")]), "its node may come back"
    for clock, past in ((yard.engine._watching._absences, "_clock"), (yard.engine.client, "server_time")):
        put_forward(clock, past, NODE_GONE_SECONDS + 1, monkeypatch)
    yard.until(lambda: len(attempts(jobs["lost"])) == 2, "what follows from a node that stays away")
    yard.until_is(jobs["lost"], "running")

    jobs["stays"].refresh_from_db()
    assert (jobs["stays"].state, devices(jobs["stays"])) == ("running", held)
    assert [len(attempts(job)) for job in (jobs["stays"], late)] == [1, 1]
    assert jobs["lost"].failures == jobs["deleted"].failures == 0
    assert no_device_is_held_twice()
    running = {pod["metadata"]["name"] for pod in pods_at(yard) if pod["status"]["phase"] == "Running"}
    assert running == set(Pod.objects.filter(released_at=None).values_list("name", flat=True))


def the_last_order_of_a_process(yard: Yard, job: Job) -> Command:
    """The start of this job, which nobody has carried out yet."""

    def found() -> Command | None:
        assert run_cycle(timezone.now()) is not None
        return Command.objects.filter(subject_id__startswith=str(job.pk)).first()

    order = wait_until(found, 20, "the order to start it")
    assert order is not None
    return order


def no_device_is_held_twice() -> bool:
    held = [
        (pod.node_id, index)
        for pod in Pod.objects.filter(released_at=None)
        for index in pod.allocations.values_list("device__index", flat=True)
    ]
    return len(held) == len(set(held))


def pods_at(yard: Yard) -> list[Raw]:
    found: list[Raw] = yard.kube.must("GET", f"/api/v1/pods?labelSelector={names.ours(yard.name)}")["items"]
    return found


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_cluster_whose_clock_is_an_hour_off_fails_nothing_and_ends_nothing_early(
    yard: Yard, proxy: FaultProxy, ahead: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = yard.add_node()
    proxy.ahead = ahead
    project = yard.project()
    limited = make_job(project, "limited", max_runtime_seconds=600)
    short = make_job(project, "short")
    started(yard, limited, short)
    told = Pod.objects.get(job=limited).started_at
    assert told is not None
    assert abs(told - ahead - timezone.now()) < timedelta(minutes=1), "the pod's moments are the cluster's"
    yard.kube.end_pod(f"{yard.prefix}{project.name}", yard.path_of(short).rpartition("/")[2])
    yard.until_is(short, "succeeded")
    assert short.started_at is not None
    assert short.finished_at is not None
    assert timedelta() <= short.finished_at - short.started_at < timedelta(minutes=1)
    limited.refresh_from_db()
    assert limited.state == "running"

    unplaced = waits_for_its_node(yard, node)
    unplaced.refresh_from_db()
    assert (unplaced.state, unplaced.reason) == ("starting", base.WAITING_FOR_NODE), (
        "it has just begun to wait"
    )
    put_forward(yard.engine.client, "server_time", BIND_SECONDS + 1, monkeypatch)
    yard.until(
        lambda: Pod.objects.filter(job=unplaced, reason=base.UNSCHEDULABLE).exists(), "its time to be over"
    )

    yard.ahead = timedelta(seconds=601)
    yard.until_is(limited, "timed_out", "max_runtime")
    assert no_device_is_held_twice()


def waits_for_its_node(yard: Yard, node: str) -> Job:
    """A job whose pod the cluster's scheduler cannot place where we sent it."""
    context_of(yard.cluster).housekept_at = timezone.now() + yard.ahead  # we hear of the taint too late
    yard.kube.must(
        "PATCH",
        f"/api/v1/nodes/{node}",
        {"spec": {"taints": [{"key": f"example.org/{secrets.token_hex(2)}", "effect": "NoSchedule"}]}},
        kind="application/merge-patch+json",
    )
    job = make_job(Job.objects.latest("submit_rank").project, "unplaced")
    yard.until_is(job, "starting", base.WAITING_FOR_NODE)
    return job
