"""Read GPU usage from a Prometheus that scrapes NVIDIA's DCGM exporter.

The exporter names physical GPUs, while the planner numbers device places on a node, because a device plugin chooses
the GPU. The GPUs of a pod are therefore found by the pod's name, and assigned in order to the places that it holds.
Metrics: DCGM_FI_DEV_GPU_UTIL (percent), DCGM_FI_PROF_GR_ENGINE_ACTIVE (0 to 1, exact where profiling is enabled)
and DCGM_FI_DEV_FB_USED (MiB);
https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.engines.base import DeviceShare, EngineUnreachable, NodeReport, PodUsage, UsageReport

ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
UTILIZATION = "DCGM_FI_DEV_GPU_UTIL"
MEMORY_USED = "DCGM_FI_DEV_FB_USED"
QUERY = f'{{__name__=~"{ACTIVE}|{UTILIZATION}|{MEMORY_USED}"}}'
# The same label has another name if Prometheus renames labels that clash with its own.
NODE_LABELS = ("Hostname", "kubernetes_node", "node", "exported_node", "instance")
POD_LABELS = ("exported_pod", "pod")
NAMESPACE_LABELS = ("exported_namespace", "namespace")

Get = Callable[[str, Mapping[str, str]], Any]
"""A JSON GET below the Prometheus server: (path, query) -> answer. Raises EngineUnreachable."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A running pod of ours, and the device places that it holds on its node. `pod`: (namespace, name) in the
    cluster, where an operator may have named it."""

    pod_name: str
    pod: tuple[str, str]
    node: str
    devices: tuple[DeviceShare, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """The measurements of one physical GPU; None: not measured. `utilization`: 0 to 1; `pod`: (namespace, name) of
    the pod that uses it; `order`: by which the GPUs of a node are sorted."""

    node: str
    order: tuple[int, str]
    pod: tuple[str, str] | None
    utilization: float | None
    memory_used_mib: int | None


def read_gpus(get: Get) -> tuple[Gpu, ...]:
    """Return all GPUs that Prometheus reports, by one query. Raise EngineUnreachable if it does not answer or its
    response cannot be interpreted."""
    answer = get("/api/v1/query", {"query": QUERY})
    try:
        series = [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]
        return _gpus(series)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineUnreachable(f"Prometheus returned an invalid answer: {error!r}") from error


def usage_of(
    nodes: Sequence[NodeReport], holdings: Iterable[Holding], gpus: Iterable[Gpu]
) -> tuple[UsageReport, ...]:
    """Return one report per device place, in the order of nodes and devices. What was not measured is None."""
    by_node: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in sorted(gpus, key=lambda gpu: gpu.order):
        by_node[gpu.node].append(gpu)
    held: dict[str, list[Holding]] = defaultdict(list)
    for holding in holdings:
        held[holding.node].append(holding)
    return tuple(
        report for node in nodes for report in _node_usage(node, held[node.name], by_node[node.name])
    )


def _node_usage(node: NodeReport, holdings: Sequence[Holding], gpus: Sequence[Gpu]) -> Iterator[UsageReport]:
    placed = _places(node, holdings, gpus)
    pods = [(_pod_usage(each, placed), {share.index for share in each.devices}) for each in holdings]
    for device in node.devices:
        gpu = placed.get(device.index)
        measured = (gpu.utilization, gpu.memory_used_mib) if gpu else (None, None)
        users = tuple(usage for usage, places in pods if device.index in places)
        yield UsageReport(node.name, device.index, *measured, users)


def _places(node: NodeReport, holdings: Sequence[Holding], gpus: Sequence[Gpu]) -> dict[int, Gpu]:
    """Return the physical GPU of each device place, as far as known. A pod's GPUs get its places; the remaining GPUs
    get the remaining places."""
    placed: dict[int, Gpu] = {}
    rest = list(gpus)
    for holding in holdings:
        serving = [gpu for gpu in rest if gpu.pod == holding.pod]
        free = [share.index for share in holding.devices if share.index not in placed]
        for index, gpu in zip(free, serving, strict=False):
            placed[index] = gpu
            rest.remove(gpu)
    ours = {share.index for holding in holdings for share in holding.devices}
    empty = [device.index for device in node.devices if device.index not in placed]
    # A pod that no series names yet is assigned last.
    empty.sort(key=lambda index: index in ours)
    return placed | dict(zip(empty, rest, strict=False))


def _pod_usage(holding: Holding, placed: Mapping[int, Gpu]) -> PodUsage:
    """Return a pod's usage: the mean utilisation of its devices weighted by share, and its share of their memory."""
    known = [(placed[share.index], share.milli_gpus) for share in holding.devices if share.index in placed]
    measured = [(gpu.utilization, milli) for gpu, milli in known if gpu.utilization is not None]
    held = sum(milli for _, milli in measured)
    utilization = sum(value * milli for value, milli in measured) / held if held else None
    used = [gpu.memory_used_mib * milli // 1000 for gpu, milli in known if gpu.memory_used_mib is not None]
    return PodUsage(holding.pod_name, utilization, sum(used) if used else None)


def _gpus(series: Sequence[tuple[Mapping[str, str], float]]) -> tuple[Gpu, ...]:
    """Return the GPUs with their measurements. A shared GPU has a series for each pod; the first one that names a pod
    counts."""
    figures: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    labels: dict[tuple[str, str], Mapping[str, str]] = {}
    for metric, value in series:
        key = (_node(metric), metric.get("UUID") or metric.get("gpu", ""))
        if key not in labels or (_pod(labels[key]) is None and _pod(metric) is not None):
            labels[key] = metric
        if not math.isnan(value):
            figures[key][metric["__name__"]] = value
    return tuple(_gpu(labels[key], figures[key]) for key in sorted(labels))


def _gpu(labels: Mapping[str, str], figures: Mapping[str, float]) -> Gpu:
    percent = figures.get(UTILIZATION)
    utilization = figures.get(ACTIVE, None if percent is None else percent / 100)
    memory_mib, number = figures.get(MEMORY_USED), labels.get("gpu", "")
    return Gpu(
        _node(labels),
        # A GPU without a number is placed after the numbered ones.
        (int(number) if number.isdecimal() else 1 << 16, labels.get("UUID", "")),
        _pod(labels),
        None if utilization is None else min(1.0, max(0.0, utilization)),
        None if memory_mib is None else int(memory_mib),
    )


def _pod(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Return (namespace, name) of the pod that uses the GPU, None if none does. A `pod` label without the prefix
    "exported_" names the exporter itself, unless there is a `container` label too."""
    is_user = bool(labels.get("exported_pod") or (labels.get("pod") and labels.get("container")))
    return (_first(labels, NAMESPACE_LABELS), _first(labels, POD_LABELS)) if is_user else None


def _node(labels: Mapping[str, str]) -> str:
    # The label `instance` ends with the exporter's port, which is no part of a node's name.
    return _first(labels, NODE_LABELS).partition(":")[0]


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
