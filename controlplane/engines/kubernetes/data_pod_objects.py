"""Pods that work for the control plane on a claim of a project: to fill its caches, or to read what its jobs wrote.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.engines.kubernetes import manifests, names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.kubernetes_api.names import FIELD_MANAGER

CONTAINER = "main"


@dataclass(frozen=True, slots=True)
class DataPodSpec:
    """One such pod. `root`: where its container has the claim. `seconds`: after these it is ended, None: never."""

    name: str
    project: str
    claim: str
    root: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    is_read_only: bool = False
    seconds: int | None = None
    # Where another pod has the claim already; "": the cluster's scheduler chooses.
    node: str = ""


def metadata_of(name: str, project: str, profile: ClusterProfile, **more: str) -> dict[str, Any]:
    """Return metadata whose labels lack that of the installation: what has them is no job's."""
    labels = {names.MANAGED_BY: FIELD_MANAGER, names.PROJECT: project, names.DATA_OF: profile.installation}
    return {"name": name, "namespace": profile.namespace_of(project), "labels": {**labels, **more}}


def pod(spec: DataPodSpec, profile: ClusterProfile) -> dict[str, Any]:
    """Return the pod, in the image that has python3 by the cluster's settings."""
    mount = {"name": "data", "mountPath": spec.root, **({"readOnly": True} if spec.is_read_only else {})}
    container = {
        "name": CONTAINER,
        "image": profile.images.get(profile.code_image) or profile.code_image or profile.default_image,
        "imagePullPolicy": profile.image_pull_policy,
        "command": list(spec.command),
        "env": [{"name": name, "value": value} for name, value in spec.env.items()],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": manifests.container_security(profile),
        "volumeMounts": [mount],
    }
    body = {
        "restartPolicy": "Never",
        # The cluster ends it, also after its control plane was lost.
        "activeDeadlineSeconds": spec.seconds,
        # What it does is repeated from files and hashes: nothing is worth waiting for.
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        # As in pods of jobs: services of the namespace would fill its environment.
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": name} for name in profile.image_pull_secrets],
        "nodeName": spec.node,
        # The kubelet of a named node refuses what its labels do not match.
        "nodeSelector": {} if spec.node else dict(profile.node_selector),
        "tolerations": [dict(one) for one in profile.tolerations],
        "securityContext": manifests.pod_security(profile),
        "containers": [manifests.without_empty(container)],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": spec.claim}}],
    }
    metadata = metadata_of(spec.name, spec.project, profile, **spec.labels)
    return names.manifest("Pod", metadata, spec=manifests.without_empty(body))
