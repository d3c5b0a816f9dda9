"""The reflector against a real API server whose answers and streams a proxy spoils: in the end model equals server."""

import random
import threading
import time
from collections.abc import Iterator

import pytest

from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import access_of_kubeconfig
from controlplane.kubernetes_api.reflector import Reflector
from tests.kube import KubeCluster
from tests.kubernetes.proxy import FaultProxy, Faults, fault_proxy
from tests.waiting import patience, wait_until

QUICK = (0.001, 0.05)  # back-off
DROPS, GAPS, DISORDERED = 300, 60, 50  # of each kind at least


def version(obj: dict) -> str:
    return obj["metadata"]["resourceVersion"]


def reflector_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("reflector")]


class World:
    """ConfigMaps of one namespace: as the server has them, as a reflector behind a proxy sees them."""

    def __init__(self, kube: KubeCluster, proxy: FaultProxy, namespace: str) -> None:
        self.straight = Client(access_of_kubeconfig(kube.kubeconfig_text))
        self.faulty = Client(proxy.access())
        self.proxy, self.path = proxy, f"/api/v1/namespaces/{namespace}/configmaps"
        self.namespace, self.changes = namespace, 0
        self.straight.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self._reflectors: list[Reflector] = []

    def reflector(self, **settings) -> Reflector:
        settings = {"keep": version, "backoff_bounds": QUICK, "on_change": self.note, **settings}
        reflector = Reflector(self.faulty, self.path, **settings)
        self._reflectors.append(reflector)
        reflector.start()
        assert reflector.wait_synced(30)
        return reflector

    def note(self) -> None:
        self.changes += 1

    def make(self, name: str, **data: str) -> dict:
        return self.straight.create(self.path, {"metadata": {"name": name}, "data": data})

    def truth(self) -> dict[str, str]:
        items = self.straight.get(self.path)["items"]
        return {f"{self.namespace}/{one['metadata']['name']}": version(one) for one in items}

    def stir(self, rounds: int, seed: int = 7) -> None:
        """Create, change and delete, as fast as the server takes it."""
        chance, there = random.Random(seed), [f"s{number}" for number in range(5)]
        for name in there:
            self.make(name)
        for number in range(rounds):
            what = chance.random()
            if what < 0.3 or len(there) < 3:
                there.append(f"n{number}")
                self.make(there[-1])
            elif what < 0.5:
                self.straight.delete(f"{self.path}/{there.pop(chance.randrange(len(there)))}")
            else:
                self.straight.merge(f"{self.path}/{chance.choice(there)}", {"data": {"n": str(number)}})

    def close(self) -> None:
        for reflector in self._reflectors:
            reflector.close()
        self.straight.delete(f"/api/v1/namespaces/{self.namespace}")
        self.straight.close()
        self.faulty.close()


@pytest.fixture
def world(kube: KubeCluster, request: pytest.FixtureRequest) -> Iterator[World]:
    with fault_proxy(kube) as proxy:
        world = World(kube, proxy, request.node.name.replace("_", "-")[:60].strip("-"))
        yield world
        world.close()


def test_what_happens_is_seen(world):
    world.make("before")
    reflector = world.reflector()
    assert dict(reflector.items()) == world.truth()
    world.make("later")
    world.straight.delete(f"{world.path}/before")
    wait_until(lambda: dict(reflector.items()) == world.truth(), 20, "the model")
    assert f"{world.namespace}/before" not in reflector.items()
    assert world.changes >= 3


def test_a_list_of_several_pages_is_whole(world, monkeypatch):
    monkeypatch.setattr("controlplane.kubernetes_api.reflector.PAGE", 3)
    for number in range(10):
        world.make(f"a{number}")
    reflector = world.reflector()
    assert dict(reflector.items()) == world.truth()
    assert len(reflector.items()) >= 10
    assert world.faulty.calls["list", "configmaps"] >= 4


def test_items_are_a_picture_that_does_not_move(world):
    reflector = world.reflector()
    before = reflector.items()
    world.make("a")
    wait_until(lambda: len(reflector.items()) == len(before) + 1, 20, "the new object")
    assert f"{world.namespace}/a" not in before
    with pytest.raises(TypeError):
        reflector.items()["x"] = 1  # type: ignore[index]  # it is read-only


def test_our_own_writes_are_seen_at_once(world):
    reflector = world.reflector()
    world.proxy.faults = Faults(stall_seconds=0.3)
    key = f"{world.namespace}/a"
    made = world.make("a")
    reflector.observe(made)
    assert reflector.items()[key] == version(made)
    changed = world.straight.merge(f"{world.path}/a", {"data": {"x": "1"}})
    reflector.observe(changed)
    reflector.observe(made)  # a late answer does not turn time back
    assert reflector.items()[key] == version(changed)
    world.straight.delete(f"{world.path}/a")
    wait_until(lambda: key not in reflector.items(), 10, "the end of it")
    reflector.observe(changed)  # nor does it raise the dead
    assert key not in reflector.items()


def test_half_open_watches_are_noticed(world):
    reflector = world.reflector(silence_seconds=1)
    world.proxy.freeze()
    world.make("unseen")
    wait_until(lambda: reflector.trouble, 20, "the reflector to notice")
    assert reflector.seconds_since_contact() >= 1
    world.proxy.cut_all()
    world.proxy.thaw()
    wait_until(lambda: dict(reflector.items()) == world.truth(), 20, "the model")
    assert reflector.seconds_since_contact() < 5
    assert not reflector.trouble


def test_watches_that_the_server_ends_go_on_without_a_list(world):
    reflector = world.reflector(watch_seconds=(1, 1))
    wait_until(lambda: world.faulty.calls["watch", "configmaps"] >= 3, 10, "three watches")
    world.make("a")
    wait_until(lambda: dict(reflector.items()) == world.truth(), 20, "the model")
    assert world.faulty.calls["list", "configmaps"] == 1


def test_a_list_is_made_from_time_to_time_whatever_the_watch_says(world):
    world.reflector(relist_seconds=1)
    wait_until(lambda: world.faulty.calls["list", "configmaps"] >= 3, 10, "three lists")


@pytest.mark.slow
def test_hundreds_of_drops_and_gaps(world):
    reflector = world.reflector()
    proxy = world.proxy
    proxy.faults = Faults(
        cut=0.5, gone=0.25, drop=0.05, busy=0.05, failing=0.05, lose_answer=0.05, repeat=0.3, swap=0.3
    )
    deadline = time.monotonic() + patience(300)  # some ten seconds on two cores that are nobody else's
    rounds = 0

    def enough() -> bool:
        is_disordered = min(proxy.done["repeat"], proxy.done["swap"]) > DISORDERED
        return (
            proxy.done["cut"] + proxy.done["drop"] >= DROPS and proxy.done["gone"] >= GAPS and is_disordered
        )

    world.stir(200)
    world.make("steady")
    while not enough() and time.monotonic() < deadline:
        rounds += 1
        world.straight.merge(f"{world.path}/steady", {"data": {"n": str(rounds)}})
    assert enough(), proxy.done
    proxy.faults = Faults()
    wait_until(lambda: dict(reflector.items()) == world.truth(), 20, "model equals server after quiet")


def test_events_late_repeated_and_out_of_order(world):
    reflector = world.reflector()
    world.proxy.faults = Faults(repeat=0.5, swap=0.5, stall_seconds=0.002)
    world.stir(400)
    wait_until(lambda: dict(reflector.items()) == world.truth(), 10, "model equals server")
    assert min(world.proxy.done["repeat"], world.proxy.done["swap"]) > 50


def test_a_server_that_ends_every_watch_at_once_is_not_asked_all_the_time(world):
    world.proxy.faults = Faults(gone=1)
    reflector = world.reflector(backoff_bounds=(0.8, 30))
    before, began = world.faulty.calls["watch", "configmaps"], time.monotonic()
    wait_until(lambda: time.monotonic() - began > 3, 5)
    assert world.faulty.calls["watch", "configmaps"] - before < 25
    # between a list and the end of the next watch there is none
    wait_until(lambda: "Expired" in reflector.trouble, 10, "the trouble")


def test_close_ends_the_thread_also_in_a_watch(world, monkeypatch):
    reflectors = [world.reflector() for _ in range(5)]
    assert len(reflector_threads()) == 5
    # Less than the server leaves a watch open: only an aborted one ends within this time.
    monkeypatch.setattr("controlplane.kubernetes_api.reflector._BYE_SECONDS", 60)
    for reflector in reflectors:
        reflector.close()
    assert not reflector_threads()


def test_a_cluster_that_is_not_there_is_told(kube):
    with fault_proxy(kube) as proxy:
        proxy.faults = Faults(drop=1)
        client = Client(proxy.access())
        reflector = Reflector(client, "/api/v1/configmaps", backoff_bounds=QUICK)
        reflector.start()
        assert not reflector.wait_synced(0.3)
        assert reflector.seconds_since_contact() == float("inf")
        wait_until(lambda: "cannot be reached" in reflector.trouble, 20, "the trouble")
        reflector.close()
        client.close()
