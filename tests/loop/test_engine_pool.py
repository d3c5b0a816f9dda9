"""Which clusters the loop works for, and how their engines are opened and closed."""

import pytest

from controlplane.clusters.credentials import encrypt
from controlplane.engines.memory import MemoryEngine
from controlplane.loop import engine_pool
from controlplane.loop.engine_pool import attached_clusters, close_engines, engine_for
from controlplane.loop.log_shipping import LogKeeper
from controlplane.loop.telemetry_step import collect_once
from controlplane.models import Cluster

pytestmark = pytest.mark.django_db


@pytest.fixture
def opened(monkeypatch):
    """What was opened and closed, in order; every engine closes with a word."""
    events = []

    class Told(MemoryEngine):
        def __init__(self, number, words):
            super().__init__({"nodes": {}})
            self.number, self.words = number, words

        def close(self):
            events.append(("close", self.number))

    def open_engine(kind, settings, state_dir):
        number = sum(event == "open" for event, _ in events) + 1
        events.append(("open", number))
        return Told(number, settings)

    monkeypatch.setattr(engine_pool, "open_engine", open_engine)
    yield events
    close_engines()


def cluster_in(state: str, name: str = "prod") -> Cluster:
    return Cluster.objects.create(name=name, engine="memory", settings={"nodes": {}}, state=state)


def test_only_attached_clusters_are_worked_for():
    attached_one = cluster_in("attached", "one")
    cluster_in("checking", "two")
    cluster_in("refused", "three")
    assert list(attached_clusters()) == [attached_one]


def test_an_engine_gets_its_credentials_in_the_open(opened):
    cluster = cluster_in("attached")
    cluster.credentials = encrypt({"kubeconfig": "the text"})
    words = engine_for(cluster).words
    assert words["credentials"] == {"kubeconfig": "the text"}
    assert (words["cluster"], words["scheduler"]) == ("prod", "planner")


def test_an_engine_stays_until_its_words_change_and_is_closed_first(opened):
    cluster = cluster_in("attached")
    assert engine_for(cluster) is engine_for(Cluster.objects.get())
    cluster.credentials = encrypt({"kubeconfig": "another"})
    engine_for(cluster)
    assert opened == [("open", 1), ("close", 1), ("open", 2)]


def test_engines_that_nobody_needs_are_closed(opened):
    kept, gone = cluster_in("attached", "kept"), cluster_in("attached", "gone")
    engine_for(kept)
    engine_for(gone)
    close_engines(keep={kept.pk})
    assert opened[2:] == [("close", 2)]
    engine_for(kept)
    assert len(opened) == 3


def test_an_engine_that_cannot_be_closed_does_not_stop_the_next(opened, monkeypatch):
    cluster = cluster_in("attached")
    engine = engine_for(cluster)
    monkeypatch.setattr(engine, "close", lambda: 1 / 0)
    cluster.settings = {"nodes": {}, "more": 1}
    assert engine_for(cluster).number == 2


def test_a_cluster_that_cannot_be_opened_is_out_of_reach_in_words(plant, caplog):
    broken = Cluster.objects.create(
        name="broken", engine="kubernetes", settings={}, credentials="from another key"
    )
    plant.settle()
    assert collect_once(plant.clock())
    assert LogKeeper().look(plant.clock())
    broken.refresh_from_db()
    assert not broken.is_reachable
    assert "Cluster broken cannot be opened: The cluster's credentials" in broken.unreachable_message
    assert Cluster.objects.get(pk=plant.cluster.pk).is_reachable
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
