"""Read nodes in REST form with the pods on them."""

from collections.abc import Iterable
from typing import Any

from django.db.models import Count, Q, Sum

from controlplane.models import Node
from controlplane.notation import decimal
from controlplane.queries.nodes import node_rows
from jobs.lifecycle import STOPPING
from jobs.models import Allocation, Pod
from jobs.queries import devices_of


def node_detail(node: Node, visible_ids: frozenset[int] | None) -> dict[str, Any]:
    """Return a node with its devices and pods. `visible_ids`: the projects whose jobs may be named, None for all;
    other pods show only their project and their share of the node."""
    return node_rows([node])[0] | {"pods": _pods_on(node, visible_ids)}


def reserved_on(node_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the resources that pods reserve on these nodes, by node id: `reserved_cpus`, `reserved_memory_mib`,
    and the numbers of `pods` and of those `stopping`. Omits nodes without pods."""
    held = Pod.objects.filter(node_id__in=list(node_ids), released_at=None).order_by().values("node_id")
    sums = held.annotate(
        cpus=Sum("milli_cpus"),
        memory=Sum("memory_mib"),
        count=Count("pk"),
        stopping=Count("pk", filter=Q(job__state=STOPPING)),
    )
    return {
        row["node_id"]: {
            "reserved_cpus": decimal(row["cpus"]),
            "reserved_memory_mib": row["memory"],
            "pods": row["count"],
            "stopping": row["stopping"],
        }
        for row in sums
    }


def _pods_on(node: Node, visible_ids: frozenset[int] | None) -> list[dict[str, Any]]:
    pods = Pod.objects.filter(node=node, released_at=None).select_related(
        "job__project", "job__user", "attempt"
    )
    devices = devices_of(Allocation.objects.filter(pod__node=node, pod__released_at=None))
    return [
        _shape_pod_on(pod, devices[pod.pk], visible_ids) for pod in pods.order_by("job__submit_rank", "rank")
    ]


def _shape_pod_on(
    pod: Pod, devices: list[dict[str, Any]], visible_ids: frozenset[int] | None
) -> dict[str, Any]:
    shown: dict[str, Any] = {"project": pod.job.project.name, "state": pod.state, "devices": devices}
    is_visible = visible_ids is None or pod.job.project_id in visible_ids
    return shown | {
        "job": str(pod.job_id) if is_visible else None,
        "name": f"{pod.job.name}-{pod.attempt.number}-{pod.rank}" if is_visible else None,
        "user": pod.job.user.username if is_visible else None,
    }
