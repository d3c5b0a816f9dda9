"""Open and check engines by kind, and parse TRAINYARD_CLUSTERS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controlplane.engines.base import Engine
from controlplane.engines.kinds import engine_kind, engine_kinds, load

if TYPE_CHECKING:
    from controlplane.engines.kubernetes.preflight import Check

DEFAULT_CLUSTERS = "local:dgx1-1=8x32768,dgx1-2=8x32768"


class ClustersSyntaxError(ValueError):
    """TRAINYARD_CLUSTERS is malformed; the message quotes the refused part and states the expected form."""


@dataclass(frozen=True, slots=True)
class ClusterDeclaration:
    """A cluster to register at the first start. `settings`: those for `open_engine`; `credentials`: stored encrypted,
    apart from them."""

    name: str
    engine: str
    settings: Mapping[str, Any]
    credentials: Mapping[str, Any] = field(default_factory=dict)


def open_engine(kind: str, settings: Mapping[str, Any], state_dir: Path) -> Engine:
    """Return the engine of a registered cluster. Imports only the modules of that kind. Raise ValueError for an unknown
    kind or invalid settings, EngineRefused if the credentials cannot be used.

    settings["nodes"]: {node name: {"devices": n, "memory_mib": MiB per device, "pool": name}}; for the local engine
    "nvml" instead of the mapping selects the machine's own GPUs. A Kubernetes cluster has the settings of its kind,
    plus "credentials", "scheduler" and "cluster" (its name).
    """
    engine: Engine = load(engine_kind(kind).opens)(settings, state_dir)
    return engine


def check_cluster(kind: str, settings: Mapping[str, Any]) -> tuple[Check, ...]:
    """Run the preflight of a cluster, without opening its engine, and return the results; () for kinds without a
    preflight."""
    checks = engine_kind(kind).checks
    return tuple(load(checks)(settings)) if checks else ()


def parse_clusters(text: str) -> tuple[ClusterDeclaration, ...]:
    """Return the clusters that TRAINYARD_CLUSTERS declares: `local:dgx1-1=8x32768,dgx1-2=8x32768`, several separated
    by `;`. Raise ClustersSyntaxError for any other form, or if a name is repeated.

    A node is NAME=GPUSxMIB, optionally followed by @POOL. `local:nvml` selects the machine's own GPUs.
    `kubernetes:in-cluster` is the cluster in which this process runs, `kubernetes:/path/to/kubeconfig@context`
    another one; the file is read at once.
    """
    declarations = tuple(_parse_cluster(part.strip()) for part in text.split(";") if part.strip())
    names = [declaration.name for declaration in declarations]
    if len(names) != len(set(names)):
        raise ClustersSyntaxError(
            "TRAINYARD_CLUSTERS names an engine twice; list all of its nodes in one entry."
        )
    return declarations


def _parse_cluster(text: str) -> ClusterDeclaration:
    name, separator, entry = text.partition(":")
    kinds = engine_kinds()
    if name not in kinds or not separator:
        known = " or ".join(kinds)
        raise ClustersSyntaxError(f"TRAINYARD_CLUSTERS: {text!r} must start with {known} and a colon.")
    try:
        settings, credentials = kinds[name].read_entry(entry)
    except ValueError as error:
        raise ClustersSyntaxError(f"TRAINYARD_CLUSTERS: {error}") from error
    return ClusterDeclaration(name, name, settings, credentials)
