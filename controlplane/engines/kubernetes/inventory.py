"""Build node reports from a cluster's nodes and all pods on them. No I/O.

A node's devices are numbered places, because the device plugin chooses the GPU of a pod. Capacity held by other
owners' pods is not available to us: their GPUs are marked foreign, their CPUs and memory are subtracted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction

from controlplane.clusters import quantities
from controlplane.engines.base import DeviceReport, NodeReport
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.config import (
    INTERRUPTION_CONDITIONS,
    INTERRUPTION_TAINTS,
    SPOT_TAINTS,
    ClusterProfile,
)
from controlplane.engines.kubernetes.reports import TERMINAL, condition_of, devices_of, pinned_node
from controlplane.engines.kubernetes.sanitize import LARGEST, LARGEST_SMALL, count, line
from controlplane.kubernetes_api.names import RawView

ANY_SHARE = 1000
# The most devices of one node that are believed; a larger number is a false report.
MOST_DEVICES = 1024
MPS = "mps"
# The suffix that the device plugin appends to a shared resource if it is configured to rename it.
RENAMED = ".shared"
NOT_FOR_WORK = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


def node_reports(
    nodes: Iterable[RawView], pods: Iterable[RawView], profile: ClusterProfile
) -> tuple[NodeReport, ...]:
    """Return the reports of all nodes that can run our pods, sorted by name. `pods`: all pods of the cluster,
    including ours."""
    ours: dict[str, set[int]] = defaultdict(set)
    others: dict[str, list[RawView]] = defaultdict(list)
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in TERMINAL:
            continue
        node = (pod.get("spec") or {}).get("nodeName") or pinned_node(pod)
        if profile.is_our_pod(pod):
            ours[node] |= {share.index for share in devices_of(pod)}
        elif node:
            others[node].append(pod)
    found = {str(node["metadata"]["name"]): node for node in nodes if _is_for_work(node, profile)}
    return tuple(_report(found[name], ours[name], others[name], profile) for name in sorted(found))


def most_parts(nodes: Iterable[RawView]) -> int:
    """Return the largest number of parts into which one of these nodes divides a GPU; 1 if none does."""
    return max((_replicas(node["metadata"].get("labels") or {}) for node in nodes), default=1)


def requests(pod: RawView, resource: str) -> Fraction:
    """Return how much of a resource a pod requests, in its base unit, counted as kube-scheduler does: its overhead and
    the larger of the sum over the containers and sidecars that run together and the most that an init container needs
    beside earlier sidecars. Raise ValueError for an invalid quantity."""
    spec = pod.get("spec") or {}
    running = sum((_request(one, resource) for one in spec.get("containers") or ()), Fraction(0))
    beside = peak = Fraction(0)
    for step in spec.get("initContainers") or ():
        wanted = _request(step, resource)
        # A sidecar: it runs on beside the later init containers and the main ones.
        if step.get("restartPolicy") == "Always":
            beside += wanted
        peak = max(peak, beside if step.get("restartPolicy") == "Always" else beside + wanted)
    overhead = (spec.get("overhead") or {}).get(resource, 0)
    return max(running + beside, peak) + quantities.amount(overhead)


def _report(node: RawView, held: set[int], others: list[RawView], profile: ClusterProfile) -> NodeReport:
    labels: dict[str, str] = {
        key: line(value) for key, value in (node["metadata"].get("labels") or {}).items()
    }
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    resource = profile.gpu_resource
    # With the setting renameByDefault, the device plugin gives shared GPUs a resource name of their own.
    if resource + RENAMED in allocatable:
        resource += RENAMED
        labels = {**labels, names.GPU_RESOURCE: resource}
    parts, gives_shares = _replicas(labels), profile.placement.gives_shares
    # Kubelets keep the resource of a removed device plugin, with 0.
    extras = [name for name, there in allocatable.items() if profile.may_ask_for(name) and there != "0"]
    taken, odd = _taken(others, resource, extras, profile)
    trouble, closure = _trouble(node), _closure(node, profile) or odd
    memory_mib = quantities.whole(allocatable.get("memory", 0)) // quantities.MIB
    return NodeReport(
        name=str(node["metadata"]["name"]),
        pool=profile.pool_of(labels),
        devices=_devices(node, resource, parts, held, taken[resource]),
        milli_cpus=_left(quantities.milli(allocatable.get("cpu", 0)), taken["cpu"]),
        memory_mib=_left(memory_mib, taken["memory"]),
        is_ready=not trouble,
        is_closed=bool(closure),
        interruption_seconds=_interruption(node),
        labels=labels,
        message=line(trouble or closure),
        device_parts=ANY_SHARE if gives_shares else parts,
        is_one_part_per_pod=not gives_shares and parts > 1 and labels.get(names.SHARING_STRATEGY) == MPS,
        extras={
            name: _left(quantities.whole(allocatable[name]), taken[name], quantities.MOST) for name in extras
        },
    )


def _taken(
    others: Iterable[RawView], resource: str, extras: Iterable[str], profile: ClusterProfile
) -> tuple[Counter[str], str]:
    """Return what other owners' pods hold on a node, by resource (GPUs, milli-CPUs, MiB, pieces); and why the node
    gets no new pods because a pod's requests cannot be read, else ""."""
    units = {"cpu": quantities.milli, "memory": quantities.mib, resource: quantities.whole}
    units |= dict.fromkeys(extras, quantities.pieces)
    taken, odd = Counter[str](), ""
    for pod in others:
        namespace = pod["metadata"].get("namespace")
        # A scheduler's reservation pods hold shared GPUs, possibly for our own pods.
        free = resource if namespace == profile.placement.reservations else ""
        try:
            taken.update({name: unit(requests(pod, name)) for name, unit in units.items() if name != free})
        except ValueError:
            # An unreadable pod must not make its node disappear.
            why = "requests an invalid quantity: no new pods are sent there while it exists."
            odd = odd or f"Pod {namespace}/{pod['metadata'].get('name')} on it {why}"
    return taken, odd


def _devices(
    node: RawView, resource: str, parts: int, held: set[int], taken_by_others: int
) -> tuple[DeviceReport, ...]:
    """Return one device place per GPU of the node, healthy or not. As many places as other owners hold, or are
    unhealthy, are marked foreign: the last ones that we do not hold."""
    labels, status = node["metadata"].get("labels") or {}, node.get("status") or {}
    allocatable = quantities.whole((status.get("allocatable") or {}).get(resource, 0))
    # The capacity includes unhealthy GPUs. Their places must remain, because a pod may hold them.
    total = max(allocatable, quantities.whole((status.get("capacity") or {}).get(resource, 0)))
    taken = total - allocatable + taken_by_others
    places = range(min(total // parts, MOST_DEVICES))
    free = [place for place in reversed(places) if place not in held]
    # Rounded up, because a GPU of which a part is taken is not available as a whole.
    foreign = set(free[: -(-taken // parts)])
    model = labels.get(names.GPU_MODEL, "")
    return tuple(
        DeviceReport(
            index=place,
            uuid=f"{node['metadata'].get('uid', '')}-{place}",
            model=model,
            memory_mib=count(labels.get(names.GPU_MEMORY, "")),
            is_foreign=place in foreign,
        )
        for place in places
    )


def _left(there: int, taken: int, largest: int = LARGEST) -> int:
    return max(0, min(there - taken, largest))


def _replicas(labels: Mapping[str, str]) -> int:
    return max(1, count(labels.get(names.GPU_REPLICAS, ""), LARGEST_SMALL))


def _request(container: RawView, resource: str) -> Fraction:
    """Return a container's request of a resource; without one its limit, which the API server would use."""
    resources = container.get("resources") or {}
    for kind in ("requests", "limits"):
        if resource in (resources.get(kind) or {}):
            return quantities.amount(resources[kind][resource])
    return Fraction(0)


def _is_for_work(node: RawView, profile: ClusterProfile) -> bool:
    """Return whether our pods can run on this node at all: its labels match, and it is no control plane node."""
    labels = node["metadata"].get("labels") or {}
    # A profile that tolerates the control plane's taint makes control plane nodes workers.
    is_kept_apart = any(taint.get("key") in NOT_FOR_WORK for taint in _untolerated(node, profile))
    return not is_kept_apart and all(labels.get(key) == value for key, value in profile.node_selector.items())


def _trouble(node: RawView) -> str:
    """Return why a node is not ready, in the cluster's words; "" if it is."""
    if node["metadata"].get("deletionTimestamp"):
        return "It is being removed from the cluster."
    ready = condition_of(node, "Ready")
    if ready.get("status") != "True":
        said = ": ".join(filter(None, (ready.get("reason"), ready.get("message"))))
        return f"The cluster reports it as not ready: {said or 'its kubelet has not reported yet'}."
    return ""


def _closure(node: RawView, profile: ClusterProfile) -> str:
    """Return why a node gets no new pods although it is ready; "" if it gets them."""
    if _interruption(node) is not None:
        return "Its provider withdraws it."
    if (node.get("spec") or {}).get("unschedulable"):
        return "It is cordoned in the cluster (kubectl uncordon lifts that)."
    taints = [
        f"{taint['key']}={taint.get('value', '')}:{taint['effect']}" for taint in _untolerated(node, profile)
    ]
    if taints:
        return f"It has taints that pods do not tolerate: {', '.join(taints)}. See the cluster's setting tolerations."
    return ""


def _interruption(node: RawView) -> int | None:
    """Return in how many seconds, at the earliest, the provider takes the node away; None without a notice."""
    taints = (node.get("spec") or {}).get("taints") or ()
    found = [INTERRUPTION_TAINTS[key] for taint in taints if (key := taint.get("key")) in INTERRUPTION_TAINTS]
    for condition in (node.get("status") or {}).get("conditions") or ():
        message = str(condition.get("message", "")).partition(":")[0].replace(" ", "")
        if condition.get("status") == "True":
            said = condition.get("type"), condition.get("reason"), message
            found += [INTERRUPTION_CONDITIONS[word] for word in said if word in INTERRUPTION_CONDITIONS]
    return min(found, default=None)


def _untolerated(node: RawView, profile: ClusterProfile) -> list[RawView]:
    tolerations: list[Mapping[str, str]] = list(profile.tolerations)
    if profile.has_spot(profile.pool_of(node["metadata"].get("labels") or {})):
        tolerations += [{"key": key, "operator": "Exists"} for key in SPOT_TAINTS]
    return [
        taint
        for taint in (node.get("spec") or {}).get("taints") or ()
        if taint.get("effect") in ("NoSchedule", "NoExecute")
        and not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]


def _tolerates(toleration: Mapping[str, str], taint: RawView) -> bool:
    is_same = toleration.get("key") == taint.get("key")
    if not is_same or (toleration.get("effect") or taint["effect"]) != taint["effect"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
