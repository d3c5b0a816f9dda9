"""One cluster that does not answer, by a refusal or by silence, keeps no other waiting."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from controlplane.engines.base import EngineUnreachable
from controlplane.engines.kubernetes import cluster_cache
from controlplane.engines.kubernetes.engine import KubernetesEngine
from controlplane.loop import cycle
from controlplane.loop.claims import is_fresh
from controlplane.loop.cluster_context import context_of
from controlplane.loop.cycle import run_cycle
from controlplane.models import Cluster, Lease
from tests.builders import make_job, make_project
from tests.engines import give_engine
from tests.servers import free_port
from tests.waiting import patience, wait_until

pytestmark = pytest.mark.django_db


@contextmanager
def black_hole() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def ending(event: threading.Event) -> Iterator[None]:
    try:
        yield
    finally:
        event.set()


@contextmanager
def refusing() -> Iterator[int]:
    yield free_port()


def kubeconfig(port: int) -> str:
    return f"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
clusters: [{{name: k, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
"""


@pytest.mark.parametrize("away", [black_hole, refusing])
def test_the_jobs_of_a_cluster_that_answers_start_at_once(plant, tmp_path: Path, away, monkeypatch):
    """Also in the first cycle of a worker, when nothing is known of the other cluster yet."""
    monkeypatch.setattr(cluster_cache, "ANSWER_SECONDS", 2)
    job = make_job(make_project())
    # it comes first: clusters are worked through by key
    other = Cluster.objects.create(pk=plant.cluster.pk - 1, name="away", engine="kubernetes", settings={})
    with away() as port:
        engine = KubernetesEngine({"credentials": {"kubeconfig": kubeconfig(port)}}, tmp_path)
        give_engine(other, engine)
        began = time.monotonic()
        plant.tick()
        assert time.monotonic() - began < patience(8)
        job.refresh_from_db()
        assert job.state == "starting"
        began = time.monotonic()
        plant.settle()  # forty seconds, would it be waited for in each
        assert time.monotonic() - began < patience(20)
        assert is_fresh(cycle.LEASE, 10)  # what /readyz asks: the instance is well
    give_engine(other, None)
    engine.close()
    other.refresh_from_db()
    assert (other.is_reachable, "has not listed its nodes" in other.unreachable_message) == (False, True)


def test_a_cycle_that_was_slower_than_its_lease_goes_on_with_the_next_cluster(plant, monkeypatch):
    job = make_job(make_project())
    other = Cluster.objects.create(pk=plant.cluster.pk - 1, name="slow", engine="memory", settings={})
    run = cycle._run

    def run_slowly(cluster: Cluster, *rest) -> bool:
        if cluster.pk == other.pk:
            Lease.objects.filter(name=cycle.LEASE).update(expires_at=timezone.now() - timedelta(days=1))
        return run(cluster, *rest)

    monkeypatch.setattr(cycle, "_run", run_slowly)
    monkeypatch.setattr(cycle, "RENEW_AFTER_SECONDS", -1.0)
    assert run_cycle(plant.clock())
    job.refresh_from_db()
    assert job.state == "starting"


@pytest.mark.parametrize("by_another", [True, False])
def test_a_plan_that_took_longer_than_the_lease_is_dropped_if_another_process_planned_since(
    plant, monkeypatch, by_another
):
    job = make_job(make_project())
    decide = cycle.decide

    def decide_slowly(*args):
        token = {"token": "of-another"} if by_another else {}
        Lease.objects.filter(name=cycle.LEASE).update(
            expires_at=timezone.now() - timedelta(seconds=1), **token
        )
        return decide(*args)

    monkeypatch.setattr(cycle, "decide", decide_slowly)
    monkeypatch.setattr(cycle, "RENEW_AFTER_SECONDS", -1.0)
    run_cycle(plant.clock())
    job.refresh_from_db()
    assert job.state == ("queued" if by_another else "starting")


def test_a_process_that_lost_the_lease_examines_no_other_cluster(plant, monkeypatch):
    Cluster.objects.create(pk=plant.cluster.pk + 1, name="next", engine="memory", settings={})
    make_job(make_project())
    examined = []
    run, decide, extend = cycle._run, cycle.decide, cycle.extend

    def run_noting(cluster: Cluster, *rest) -> bool:
        examined.append(cluster.name)
        return run(cluster, *rest)

    def decide_slowly(*args):
        Lease.objects.filter(name=cycle.LEASE).update(token="of-another")
        monkeypatch.setattr(cycle, "RENEW_AFTER_SECONDS", -1.0)
        return decide(*args)

    def extend_once(*args) -> bool:
        monkeypatch.setattr(cycle, "RENEW_AFTER_SECONDS", 60.0)
        return extend(*args)

    monkeypatch.setattr(cycle, "_run", run_noting)
    monkeypatch.setattr(cycle, "decide", decide_slowly)
    monkeypatch.setattr(cycle, "extend", extend_once)
    run_cycle(plant.clock())
    assert examined == [plant.cluster.name]


def test_a_plan_as_slow_as_the_last_one_keeps_the_lease_from_another_process(plant, monkeypatch):
    """Else two processes whose plans take longer than the lease take it from each other, and no plan is carried out."""
    make_job(make_project())
    context_of(plant.cluster).plan_seconds = 3.0 * cycle.LEASE_SECONDS
    left, decide = [], cycle.decide

    def decide_noting(*args):
        [lease] = Lease.objects.filter(name=cycle.LEASE)
        left.append((lease.expires_at - timezone.now()).total_seconds())
        return decide(*args)

    monkeypatch.setattr(cycle, "decide", decide_noting)
    run_cycle(plant.clock())
    assert left[0] > 4.0 * cycle.LEASE_SECONDS


def test_one_that_answers_no_more_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(cluster_cache, "ANSWER_SECONDS", 0.1)
    answer = threading.Event()
    waits = []
    with ending(answer):
        probe = cluster_cache.Probe(answer.wait)
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(EngineUnreachable):
                probe.require_answer(15)
            waits.append(time.monotonic() - began)
            monkeypatch.setattr(cluster_cache, "ANSWER_SECONDS", 30)  # what a second wait would take
    assert waits[0] >= 0.1
    assert max(waits[1:]) < 30


def test_one_that_answers_again_is_heard():
    answers: list[bool] = [False]

    def ask() -> None:
        if not answers[0]:
            raise EngineUnreachable("away")

    probe = cluster_cache.Probe(ask)

    def is_there() -> bool:
        try:
            probe.require_answer(15)
        except EngineUnreachable:
            return False
        return True

    assert not is_there()
    answers[0] = True
    wait_until(is_there, 5, "the answer")
