"""Pods of one job that are released at the same time, by the loop and by an admin."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from controlplane.access import SYSTEM
from controlplane.models import Node, Sample
from controlplane.telemetry.metrics import GPUS_ALLOCATED
from jobs import node_actions, release
from jobs.models import Allocation, Job, Pod
from tests.builders import make_counters, make_job, make_project
from tests.loop.plant import Plant
from tests.waiting import patience, wait_until

pytestmark = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
Start = Callable[[Callable[[], object]], Future[object]]


@pytest.fixture
def plant(transactional_db) -> Iterator[Plant]:
    make_counters()
    plant = Plant(nodes=3, gpus=1)
    yield plant
    plant.close()


@pytest.fixture
def spread(plant) -> Job:
    """An elastic job with a worker on each of three nodes, which do not answer."""
    job = make_job(make_project(), kind="elastic", workers=3, min_workers=1, max_workers=3)
    plant.settle()
    Node.objects.update(is_ready=False)
    job.refresh_from_db()
    assert job.allocated_milli == 3000
    return job


@pytest.fixture
def start() -> Iterator[Start]:
    """Do something in a thread with a connection of its own."""

    def do(work: Callable[[], object]) -> object:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        yield lambda work: pool.submit(do, work)


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def node_of(job: Job, rank: int) -> Node:
    return Node.objects.get(pods__job=job, pods__rank=rank)


def halted(monkeypatch, owner: Any, name: str) -> tuple[threading.Event, threading.Event]:
    """Once its next call is done this says so, and returns when told; later ones are as ever."""
    is_there, go_on, real = threading.Event(), threading.Event(), getattr(owner, name)

    def halt(*arguments: object) -> object:
        done, is_first = real(*arguments), not is_there.is_set()
        is_there.set()
        assert not is_first or go_on.wait(patience(20))
        return done

    monkeypatch.setattr(owner, name, halt)
    return is_there, go_on


def test_both_count(spread, start, monkeypatch):
    is_there, go_on = halted(monkeypatch, release, "record_allocation")
    first = start(lambda: node_actions.confirm_dead(node_of(spread, 2), actor=SYSTEM))
    assert is_there.wait(patience(20))  # what is left is written, and not committed
    second = start(lambda: node_actions.confirm_dead(node_of(spread, 1), actor=SYSTEM))
    wait_until(waits_for_a_lock, 20, "the second to wait for the first")
    go_on.set()
    first.result(patience(20))
    second.result(patience(20))
    spread.refresh_from_db()
    held = Allocation.objects.filter(pod__job=spread, released_at=None)
    assert (spread.allocated_milli, held.count()) == (1000, 1)
    points = Sample.objects.filter(metric=GPUS_ALLOCATED).order_by("at", "pk")
    assert [points.filter(by=by).last().total for by in ("project", "cluster")] == [1.0, 1.0]


def test_a_drain_and_a_death_of_one_node_take_turns(spread, start, monkeypatch):
    node = node_of(spread, 2)
    is_there, go_on = halted(monkeypatch, node_actions, "request_transitions")
    drain = start(lambda: node_actions.drain_node(Node.objects.get(pk=node.pk), actor=SYSTEM))
    assert is_there.wait(patience(20))
    death = start(lambda: node_actions.confirm_dead(Node.objects.get(pk=node.pk), actor=SYSTEM))
    wait_until(waits_for_a_lock, 20, "the second to wait for the first")
    go_on.set()
    drain.result(patience(20))
    death.result(patience(20))
    assert Pod.objects.filter(job=spread, released_at=None).count() == 2
