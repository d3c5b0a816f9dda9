"""Nodes defined by the settings only, for the memory and local engines."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

from controlplane.engines.base import (
    INVALID_POD,
    KUBERNETES_ONLY,
    NO_SUCH_DEVICE,
    NO_SUCH_NODE,
    NOT_SUPPORTED,
    DeviceReport,
    EngineRefused,
    NodeReport,
    PodSpec,
    check_pod_name,
)

MODEL = "Simulated GPU"
# The host resources of a node without settings for them, per GPU in the proportions of a DGX-1.
MILLI_CPUS_PER_DEVICE = 10_000
MEMORY_MIB_PER_DEVICE = 64 * 1024


def simulated_nodes(nodes: Mapping[str, Mapping[str, Any]]) -> tuple[NodeReport, ...]:
    """Return the nodes that settings declare: {name: {"devices": n, "memory_mib": per device}}, optionally with
    "pool", "milli_cpus" and "node_memory_mib" of the node."""
    return tuple(_node(name, node) for name, node in nodes.items())


def check_spec(spec: PodSpec, nodes: tuple[NodeReport, ...]) -> None:
    """Raise EngineRefused unless the pod's name, node and devices are valid and it uses no field for Kubernetes
    only."""
    check_place(spec, nodes)
    _refuse_what_only_clusters_have(spec)


def check_place(spec: PodSpec, nodes: tuple[NodeReport, ...]) -> None:
    """Raise EngineRefused unless the pod's name, node and devices are valid."""
    check_pod_name(spec.name)
    node = next((node for node in nodes if node.name == spec.node), None)
    if node is None:
        raise EngineRefused(NO_SUCH_NODE, f"There is no node {spec.node!r}.")
    indexes = [share.index for share in spec.devices]
    missing = set(indexes) - {device.index for device in node.devices}
    if missing:
        raise EngineRefused(NO_SUCH_DEVICE, f"Node {node.name} has no device {min(missing)}.")
    if len(indexes) != len(set(indexes)):
        raise EngineRefused(INVALID_POD, f"Pod {spec.name} names a device twice.")


def _refuse_what_only_clusters_have(spec: PodSpec) -> None:
    for one in dataclasses.fields(spec):
        if one.metadata.get(KUBERNETES_ONLY) and getattr(spec, one.name):
            raise EngineRefused(
                NOT_SUPPORTED,
                f"This cluster has no Kubernetes under it: leave {one.name} out, or use one that has.",
            )


def _node(name: str, node: Mapping[str, Any]) -> NodeReport:
    count = int(node["devices"])
    return NodeReport(
        name=name,
        pool=str(node.get("pool", "default")),
        devices=tuple(_device(name, index, int(node["memory_mib"])) for index in range(count)),
        milli_cpus=int(node.get("milli_cpus", MILLI_CPUS_PER_DEVICE * max(1, count))),
        memory_mib=int(node.get("node_memory_mib", MEMORY_MIB_PER_DEVICE * max(1, count))),
        is_ready=True,
    )


def _device(node_name: str, index: int, memory_mib: int) -> DeviceReport:
    identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"{index}.{node_name}.trainyard")
    return DeviceReport(index, f"SIM-{identity}", MODEL, memory_mib)
