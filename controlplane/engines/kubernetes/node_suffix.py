"""Wrap an engine so that its node names have a suffix, for clusters that use the same node names as another one.

The wrapped engine and the cluster use the cluster's own names; callers see only those of
`controlplane.clusters.node_names`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

from controlplane.clusters.node_names import name_here, name_there
from controlplane.engines.base import Engine, NodeReport, PodReport, PodSpec, UsageReport
from controlplane.engines.kubernetes.cache_volume import CacheVolume
from datasets.storage.claims import CacheClaim


def with_suffix(engine: Engine, suffix: str) -> Engine:
    """Return the engine, wrapped so that nodes' names have this suffix; unchanged for ""."""
    return cast(Engine, RenamedNodes(engine, suffix)) if suffix else engine


class RenamedNodes:
    """An engine whose nodes have a suffix in all names that callers pass and get. It is as thread-safe as the wrapped
    engine."""

    def __init__(self, engine: Engine, suffix: str) -> None:
        self._engine = engine
        # The name of a node for callers, and in the cluster.
        self._here, self._there = partial(name_here, suffix=suffix), partial(name_there, suffix=suffix)
        # By pod: the original report, and the renamed one, because most reports are the same objects as before.
        self._known: dict[str, tuple[PodReport, PodReport]] = {}

    def __getattr__(self, name: str) -> Any:
        """Return the wrapped engine's attribute, for methods that have no nodes' names in arguments or results."""
        return getattr(self._engine, name)

    def nodes(self) -> tuple[NodeReport, ...]:
        return tuple(replace(report, name=self._here(report.name)) for report in self._engine.nodes())

    def start(self, spec: PodSpec) -> None:
        there = replace(
            spec,
            node=self._there(spec.node),
            avoid_nodes=tuple(self._there(node) for node in spec.avoid_nodes),
            launches=tuple(replace(member, node=self._there(member.node)) for member in spec.launches),
        )
        self._engine.start(there)

    def pods(self) -> tuple[PodReport, ...]:
        """Return the wrapped engine's reports with renamed nodes. A report that is the same object as in the last
        call is not renamed again, because most of ten thousand do not change within a second."""
        earlier = self._known
        # A dict of this call alone, because others may read at the same time.
        found: dict[str, tuple[PodReport, PodReport]] = {}
        for report in self._engine.pods():
            known = earlier.get(report.name)
            is_same = known is not None and known[0] is report
            found[report.name] = known if known and is_same else (report, self._renamed(report))
        self._known = found
        return tuple(here for _, here in found.values())

    def find(self, pod_name: str, project: str) -> PodReport | None:
        found = self._engine.find(pod_name, project)
        return None if found is None else self._renamed(found)

    def caches(self, project: str, claim: CacheClaim) -> CacheVolume:
        there = replace(claim, nodes=tuple(map(self._there, claim.nodes)))
        return cast(CacheVolume, self.__getattr__("caches")(project, there))

    def usage(self) -> tuple[UsageReport, ...]:
        return tuple(replace(report, node=self._here(report.node)) for report in self._engine.usage())

    def _renamed(self, report: PodReport) -> PodReport:
        return replace(report, node=self._here(report.node))
