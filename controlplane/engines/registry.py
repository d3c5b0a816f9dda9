"""Open engines by kind, and parse TRAINYARD_CLUSTERS."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controlplane.engines.base import Engine

if TYPE_CHECKING:
    from controlplane.engines.kubernetes.preflight import Check

DEFAULT_CLUSTERS = "local:dgx1-1=8x32768,dgx1-2=8x32768"
DEFAULT_POOL = "default"
ENGINE_KINDS = ("local", "memory", "kubernetes")
IN_CLUSTER = "in-cluster"
MAX_DEVICES_PER_NODE = 64

_NODE = re.compile(
    r"(?P<name>[a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?)"
    r"=(?P<devices>\d{1,3})x(?P<memory_mib>\d{1,8})"
    r"(?:@(?P<pool>[a-z0-9](?:[-a-z0-9]{0,48}[a-z0-9])?))?"
)


class ClustersSyntaxError(ValueError):
    """TRAINYARD_CLUSTERS is malformed; the message says where and what is expected."""


@dataclass(frozen=True, slots=True)
class ClusterDeclaration:
    """A cluster to register at the first start. `settings`: JSON for `open_engine`; `credentials` are stored
    separately.
    """

    name: str
    engine: str
    settings: Mapping[str, Any]
    credentials: Mapping[str, Any] = field(default_factory=dict)


def open_engine(kind: str, settings: Mapping[str, Any], state_dir: Path) -> Engine:
    """Return the engine of a registered cluster. Imports only what that kind needs.

    settings["nodes"]: {node name: {"devices": n, "memory_mib": MiB per device, "pool": name}}; for the local
    engine "nvml" instead of the mapping takes the machine's own GPUs. A Kubernetes cluster has the knobs of
    `controlplane.clusters.settings`, and beside them "credentials", "scheduler" and "cluster" (its name).
    """
    if kind == "local":
        from controlplane.engines.local.engine import LocalEngine

        return LocalEngine(settings, state_dir)
    if kind == "memory":
        from controlplane.engines.memory import shared_engine

        return shared_engine(settings, state_dir)
    if kind == "kubernetes":
        from controlplane.engines.kubernetes.engine import KubernetesEngine
        from controlplane.engines.kubernetes.node_suffix import with_suffix

        return with_suffix(KubernetesEngine(settings, state_dir), settings.get("node_suffix", ""))
    raise ValueError(f"There is no engine {kind!r}; there are {', '.join(ENGINE_KINDS)}.")


def check_cluster(kind: str, settings: Mapping[str, Any]) -> tuple[Check, ...]:
    """Return the preflight's findings, before the engine is opened; () for engines without one."""
    if kind != "kubernetes":
        return ()
    from controlplane.engines.kubernetes.preflight import check_cluster as look

    return look(settings)


def parse_clusters(text: str) -> tuple[ClusterDeclaration, ...]:
    """Read `local:dgx1-1=8x32768,dgx1-2=8x32768`; several clusters are separated by `;`.

    A node is NAME=GPUSxMIB, optionally followed by @POOL. `local:nvml` takes the machine's own GPUs.
    `kubernetes:in-cluster` is the cluster that we run in, `kubernetes:/path/to/kubeconfig@context` another one; the
    file is read here.
    """
    declarations = tuple(_parse_cluster(part.strip()) for part in text.split(";") if part.strip())
    names = [declaration.name for declaration in declarations]
    if len(names) != len(set(names)):
        raise ClustersSyntaxError(
            "TRAINYARD_CLUSTERS names an engine twice; list all of its nodes in one entry."
        )
    return declarations


def _parse_cluster(text: str) -> ClusterDeclaration:
    kind, separator, nodes_text = text.partition(":")
    if kind not in ENGINE_KINDS or not separator:
        kinds = " or ".join(ENGINE_KINDS)
        raise ClustersSyntaxError(f"TRAINYARD_CLUSTERS: {text!r} must start with {kinds} and a colon.")
    if kind == "kubernetes":
        return ClusterDeclaration(kind, kind, {}, _credentials(nodes_text))
    if nodes_text == "nvml" and kind == "local":
        return ClusterDeclaration(kind, kind, {"nodes": "nvml"})
    nodes: dict[str, dict[str, int | str]] = {}
    for node_text in nodes_text.split(","):
        name, node = _parse_node(node_text.strip())
        if name in nodes:
            raise ClustersSyntaxError(f"TRAINYARD_CLUSTERS names the node {name!r} twice.")
        nodes[name] = node
    return ClusterDeclaration(kind, kind, {"nodes": nodes})


def _credentials(text: str) -> dict[str, Any]:
    if text == IN_CLUSTER:
        return {"in_cluster": True}
    path, _, context = text.partition("@")
    try:
        return {"kubeconfig": Path(path).read_text(encoding="utf-8"), "context": context}
    except (OSError, UnicodeDecodeError) as error:
        raise ClustersSyntaxError(
            f"TRAINYARD_CLUSTERS: kubernetes: takes {IN_CLUSTER} or the path of a kubeconfig, and {path!r} cannot be"
            f" read: {error}"
        ) from error


def _parse_node(text: str) -> tuple[str, dict[str, int | str]]:
    match = _NODE.fullmatch(text)
    if match is None:
        raise ClustersSyntaxError(f"TRAINYARD_CLUSTERS: {text!r} is not NAME=GPUSxMIB, like dgx1-1=8x32768.")
    devices, memory_mib = int(match["devices"]), int(match["memory_mib"])
    if devices > MAX_DEVICES_PER_NODE or memory_mib < 1:
        raise ClustersSyntaxError(
            f"TRAINYARD_CLUSTERS: {text!r} needs 0 to {MAX_DEVICES_PER_NODE} GPUs of 1 MiB or more."
        )
    return match["name"], {
        "devices": devices,
        "memory_mib": memory_mib,
        "pool": match["pool"] or DEFAULT_POOL,
    }
