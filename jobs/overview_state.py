"""Read the state of the topic `overview` from rows: {collection: {key: record}}, all JSON.

States do not depend on the clock (pages count seconds themselves), so an unchanged database gives an equal
state. Call these inside `snapshot_read.one_moment`, with the event number of the state.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from controlplane.live.registry import Reading, State
from controlplane.models import Event, Node
from controlplane.scheduling.mentions import Sees
from jobs.device_shares import nodes_with_devices
from jobs.overview import (
    device_sums,
    job_groups,
    node_counts,
    project_shares,
    queued_rows,
    running_rows,
    totals,
)

# Limits on the running jobs, queued jobs and nodes in the overview's lists, so that its state stays small at any size;
# the totals count all of them.
ROWS_MOST = 200


@dataclass(frozen=True, slots=True)
class Overview(Reading):
    """The overview without its job lists, which depend on the reader."""

    def seen_by(self, sees: Sees) -> State:
        """Return the overview for a reader of the projects `sees` (None: all). Omits other projects' jobs; for a
        device held by such a job it shows the project, since GPUs are shared. Three queries."""
        return self.state | {
            "running": {row["id"]: row for row in running_rows(sees, ROWS_MOST)},
            "queued": {row["id"]: row for row in queued_rows(sees, ROWS_MOST)},
            "nodes": {name: _veiled(node, sees) for name, node in self.state["nodes"].items()},
        }


def read_overview(seq: int) -> Overview:
    """Return the overview, in a fixed number of queries. `seq` is the number of the newest event."""
    nodes = nodes_with_devices(Node.objects.order_by("name")[:ROWS_MOST], None)
    state: State = {
        "totals": {"all": totals(device_sums(), node_counts(), job_groups())},
        "projects": dict(project_shares()),
        "nodes": {node["name"]: _node(node) for node in nodes},
    }
    state["series"] = {"latest": _latest(state, seq)}
    return Overview(state)


def overview_document(state: State, seq: int, now: datetime | None = None) -> dict[str, Any]:
    """Return the answer of GET /telemetry/overview from the state of the topic `overview` at event number `seq`:
    lists instead of keyed records, with run and waiting times as of `now` (None: the current time)."""
    moment = now or timezone.now()
    return {
        **state["totals"]["all"],
        "projects": list(state["projects"].values()),
        "running": [
            row | {"runtime_seconds": _seconds(row["started_at"], moment)}
            for row in state["running"].values()
        ],
        "queued": [
            row | {"waiting_seconds": _seconds(row["queued_at"], moment)} for row in state["queued"].values()
        ],
        "node_list": list(state["nodes"].values()),
        "seq": seq,
    }


_DEVICE_FIELDS = ("index", "utilization", "memory_used_mib", "memory_mib", "model", "is_foreign")
_SHARE_FIELDS = ("job", "name", "project", "milli_gpus")


def _node(node: dict[str, Any]) -> dict[str, Any]:
    devices = [
        {name: device[name] for name in _DEVICE_FIELDS}
        | {"shares": [{name: share[name] for name in _SHARE_FIELDS} for share in device["shares"]]}
        for device in node["devices"]
    ]
    return node | {"devices": devices}


def _latest(state: State, seq: int) -> dict[str, Any]:
    totals = state["totals"]["all"]
    return {
        "at": Event.objects.filter(seq=seq).values_list("at", flat=True).first(),
        "gpu_utilization": totals["gpu_utilization"],
        "gpu_memory_utilization": totals["gpu_memory_utilization"],
        "projects": {name: row["allocated_gpus"] for name, row in state["projects"].items()},
    }


def _veiled(node: dict[str, Any], sees: Sees) -> dict[str, Any]:
    if sees is None:
        return node
    devices = [
        device | {"shares": [_veiled_share(share, sees) for share in device["shares"]]}
        for device in node["devices"]
    ]
    return node | {"devices": devices}


def _veiled_share(share: dict[str, Any], sees: frozenset[str]) -> dict[str, Any]:
    if share["project"] in sees:
        return share
    return {"job": None, "project": share["project"], "milli_gpus": share["milli_gpus"]}


def _seconds(since: datetime | None, now: datetime) -> int | None:
    return None if since is None else max(0, int((now - since).total_seconds()))
