"""Names of nodes with a suffix: the pure mapping, and an engine seen through it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from controlplane.clusters.node_names import name_here, name_there
from controlplane.engines.base import RUNNING, Engine, EngineUnreachable, GangMember, PodReport, PodSpec
from controlplane.engines.kubernetes.node_suffix import with_suffix
from controlplane.engines.memory import MemoryEngine, VirtualClock
from datasets.storage.claims import CacheClaim
from tests.contract.harness import SETTINGS, EngineCase


class Noting(MemoryEngine):
    """Keeps what it was told to start, and says where that is, as a cluster does."""

    told: PodSpec | None = None

    def start(self, spec: PodSpec) -> None:
        self.told = spec
        super().start(replace(spec, avoid_nodes=(), launches=()))

    def pods(self) -> tuple[PodReport, ...]:
        node = self.told.node if self.told else ""
        return tuple(replace(report, node=node) for report in super().pods())

    def find(self, pod_name: str, project: str) -> PodReport | None:
        return next((report for report in self.pods() if report.name == pod_name), None)


@pytest.mark.parametrize("suffix", ["", "prod2", "a"])
@pytest.mark.parametrize("name", ["", "gpu-1", "ip-10-0-0-1.ec2.internal", "node.prod2", "prod2"])
def test_a_name_comes_back_as_it_was(name: str, suffix: str):
    assert name_there(name_here(name, suffix), suffix) == name


def test_a_suffix_stands_after_a_dot_and_no_node_has_none():
    assert (name_here("gpu-1", "prod2"), name_here("", "prod2")) == ("gpu-1.prod2", "")


def test_without_a_suffix_the_engine_is_left_alone():
    engine: Engine = MemoryEngine(SETTINGS)
    assert with_suffix(engine, "") is engine


def test_those_above_and_the_cluster_each_have_their_own_names(tmp_path):
    clock = VirtualClock()
    inner = Noting(SETTINGS, clock)
    case = EngineCase(with_suffix(inner, "prod2"), tmp_path, clock.advance)
    assert [node.name for node in case.engine.nodes()] == ["node-a.prod2", "node-b.prod2"]
    members = (GangMember(0, "job-1-0", "node-a.prod2", (0,)),)
    spec = case.start("sleep", "60", node="node-a.prod2", avoid_nodes=("node-b.prod2",), launches=members)
    assert inner.told is not None
    assert (inner.told.node, inner.told.avoid_nodes) == ("node-a", ("node-b",))
    assert [member.node for member in inner.told.launches] == ["node-a"]
    assert case.wait_running(spec).node == "node-a.prod2"
    found = case.engine.find(spec.name, spec.project)
    assert found is not None
    assert found.node == "node-a.prod2"
    used = [report.node for report in case.engine.usage() if report.pods]
    assert used == ["node-a.prod2"]
    case.engine.stop(spec.name, 0)
    assert case.wait_end(spec).node == "node-a.prod2"
    case.engine.forget(spec.name)
    assert case.engine.pods() == inner.pods() == ()


def test_the_nodes_of_a_volume_for_caches_are_the_clusters():
    class Inner:
        def caches(self, project: str, claim: CacheClaim) -> tuple[str, ...]:
            return claim.nodes

    engine: Any = with_suffix(cast(Engine, Inner()), "prod2")
    assert engine.caches("team", CacheClaim(nodes=("node-a.prod2", "node-b.prod2"))) == ("node-a", "node-b")


def test_a_report_that_did_not_change_is_not_made_anew(tmp_path, monkeypatch):
    clock = VirtualClock()
    inner = MemoryEngine(SETTINGS, clock)
    case = EngineCase(with_suffix(inner, "prod2"), tmp_path, clock.advance)
    case.wait_running(case.start("sleep", "60", node="node-a.prod2"))
    (told,) = inner.pods()
    monkeypatch.setattr(inner, "pods", lambda: (told,))
    assert case.engine.pods()[0] is case.engine.pods()[0]


def test_a_second_reader_takes_nothing_from_the_first(monkeypatch):
    """The wrapper is as thread-safe as the engine in it: a pod that is left out of the reports counts as lost."""
    inner = MemoryEngine(SETTINGS, VirtualClock())
    engine = with_suffix(inner, "prod2")
    told = tuple(PodReport(f"job-1-{rank}", RUNNING, node="node-a") for rank in range(4))

    def unreachable() -> tuple[PodReport, ...]:
        raise EngineUnreachable("away")

    def interrupted() -> Iterator[PodReport]:
        yield from told[:2]
        monkeypatch.setattr(inner, "pods", unreachable)
        with pytest.raises(EngineUnreachable):
            engine.pods()
        yield from told[2:]

    monkeypatch.setattr(inner, "pods", interrupted)
    assert [report.name for report in engine.pods()] == [report.name for report in told]
