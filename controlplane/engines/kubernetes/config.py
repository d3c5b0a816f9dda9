"""Read the settings of one cluster into a profile. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.engines.base import NOT_SUPPORTED, EngineRefused
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.settings import EVERY_POOL, KNOBS, Settings, parse_settings

PLANNER, KAI = "planner", "kai"

# The node labels that name a pool if the settings name no label; the first one present wins.
POOL_LABELS = (
    names.POOL,
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
    "cloud.google.com/gke-nodepool",
    "alibabacloud.com/nodepool-id",
    "node.alibabacloud.com/nodepool-id",
)
# Taints of nodes that may be taken away at any time (spot nodes), as clouds or their guides set them.
SPOT_TAINTS = (
    "kubernetes.azure.com/scalesetpriority",
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-preemptible",
    "karpenter.sh/capacity-type",
    "eks.amazonaws.com/capacityType",
    "spotInstance",
    "node.alibabacloud.com/instance-charge-type",
)
# Taints and conditions by which providers announce that a node will be taken away, and how long it remains
# then: two minutes on EC2, 30 seconds on GKE and Azure.
INTERRUPTION_TAINTS = {
    "aws-node-termination-handler/spot-itn": 120,
    "karpenter.sh/disrupted": 120,
    "cloud.google.com/impending-node-termination": 30,
}
# AKS names the event in the type, the reason or the message of a condition ("Preempt Scheduled: <time>").
INTERRUPTION_CONDITIONS = {"PreemptScheduled": 30, "TerminateScheduled": 30}
DEFAULT_POOL = "default"


@dataclass(frozen=True, slots=True)
class Placement:
    """What a cluster's scheduler demands of pods and objects, as the code needs it that makes their manifests.
    scheduler.py has the calls to the cluster."""

    # It binds pods that were created without a node, and holds projects to their bounds.
    places_pods: bool = False
    # It gives out any share of a GPU, whatever the device plugin does.
    gives_shares: bool = False
    # The namespace of pods that hold GPUs for pods of ours.
    reservations: str = ""


PLACEMENTS = {
    PLANNER: Placement(),
    KAI: Placement(places_pods=True, gives_shares=True, reservations="kai-resource-reservation"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProfile(Settings):
    """How objects are rendered for one cluster: its settings, and our identity in it. `installation` separates our
    objects from those of another control plane. `scheduler`: "planner" (ours) or "kai". `has_mpi_operator`: by the
    last preflight."""

    installation: str = "trainyard"
    scheduler: str = PLANNER
    has_mpi_operator: bool = False

    @property
    def placement(self) -> Placement:
        return PLACEMENTS[self.scheduler]

    def namespace_of(self, project: str) -> str:
        """Return the name of a project's namespace. It is valid, because project names have at most 50 characters and
        prefixes at most 12."""
        return self.namespace_prefix + project

    def metadata(self, name: str, project: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the metadata of an object in the project's namespace. `labels` None: the project's own."""
        labels = names.labels(self.installation, project) if labels is None else labels
        return {"name": name, "namespace": self.namespace_of(project), "labels": {**labels}}

    def has_made(self, raw: Mapping[str, Any]) -> bool:
        return names.made_by(raw) == self.installation

    def is_our_pod(self, raw: Mapping[str, Any]) -> bool:
        """Return whether a pod is ours: it has our label and is in its project's namespace. The label alone is no
        proof, because users of other namespaces may set any label."""
        project = (raw["metadata"].get("labels") or {}).get(names.PROJECT, "")
        return self.has_made(raw) and raw["metadata"].get("namespace") == self.namespace_of(project)

    def check_extra_resources(self, wanted: Iterable[str]) -> None:
        """Raise EngineRefused(NOT_SUPPORTED) if jobs may not request one of these resources."""
        refused = [resource for resource in wanted if not self.may_ask_for(resource)]
        if refused:
            raise EngineRefused(
                NOT_SUPPORTED,
                f"This cluster does not give jobs {', '.join(refused)}, which quotas do not count. An admin may add a"
                " resource that is not a GPU to its setting extra_resources (now:"
                f" {', '.join(self.extra_resources) or 'empty'}).",
            )

    def may_ask_for(self, resource: str) -> bool:
        """Return whether jobs may request this extended resource: the setting allows it, and it is no GPU, shared
        (nvidia.com/gpu.shared) or partitioned (nvidia.com/mig-1g.10gb), nor CPU or memory."""
        vendor, _, _ = self.gpu_resource.rpartition("/")
        is_gpu = resource == self.gpu_resource or resource.startswith(
            (f"{self.gpu_resource}.", f"{self.gpu_resource}-", f"{vendor}/mig-")
        )
        # Jobs request these in their own fields, in other units.
        is_own_field = resource in ("cpu", "memory")
        return not (is_gpu or is_own_field) and resource.startswith(self.extra_resources)

    def priority_class(self, is_preemptible: bool) -> str:
        """Return the name of our PriorityClass for preemptible or non-preemptible pods."""
        return f"{self.installation}-{'preemptible' if is_preemptible else 'guaranteed'}"

    def pool_of(self, node_labels: Mapping[str, str]) -> str:
        """Return the name of a node's pool, from the first pool label that it has: lower-case letters, digits and
        hyphens, at most 50; DEFAULT_POOL without such a label."""
        keys = (self.pool_label,) if self.pool_label else POOL_LABELS
        raw = next((node_labels[key] for key in keys if node_labels.get(key)), DEFAULT_POOL)
        return re.sub(r"[^a-z0-9]+", "-", raw.lower())[:50].strip("-") or DEFAULT_POOL

    def pool_terms(self, pools: tuple[str, ...]) -> list[list[dict[str, Any]]]:
        """Return node selector terms for these pools, of which a node must match one. Pools must be named like their
        labels' values."""
        keys = (self.pool_label,) if self.pool_label else POOL_LABELS
        named = [pool for pool in pools if pool != DEFAULT_POOL]
        terms: list[list[dict[str, Any]]] = []
        if named:
            terms = [[{"key": key, "operator": "In", "values": named}] for key in keys]
        if DEFAULT_POOL in pools:
            terms.append([{"key": key, "operator": "DoesNotExist"} for key in keys])
        return terms

    def has_spot(self, pool: str) -> bool:
        return EVERY_POOL in self.spot_pools or pool in self.spot_pools


def profile_from(settings: Mapping[str, Any]) -> ClusterProfile:
    """Return the profile of a cluster with these settings, which may also contain credentials and our identity. Raise
    SettingsInvalid (a ValueError) for an invalid one."""
    knobs = parse_settings({name: value for name, value in settings.items() if name in KNOBS})
    identity = ("installation", "scheduler", "has_mpi_operator")
    return ClusterProfile(**knobs, **{name: settings[name] for name in identity if settings.get(name)})
