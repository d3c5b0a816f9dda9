"""The pods that work for the control plane on a project's claim: to fill its caches, or to read what its jobs
wrote. Pure."""

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
    """The parameters of such a pod. `root`: the mount path of the claim. `seconds`: its longest run time, None:
    unlimited."""

    name: str
    project: str
    claim: str
    root: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    is_read_only: bool = False
    seconds: int | None = None
    # The node whose pods already use the claim; "" leaves the choice to the cluster's scheduler.
    node: str = ""


def metadata_of(name: str, project: str, profile: ClusterProfile, **more: str) -> dict[str, Any]:
    """Return metadata without the label of the installation, which marks pods of jobs."""
    labels = {names.MANAGED_BY: FIELD_MANAGER, names.PROJECT: project, names.DATA_OF: profile.installation}
    return {"name": name, "namespace": profile.namespace_of(project), "labels": {**labels, **more}}


def pod(spec: DataPodSpec, profile: ClusterProfile) -> dict[str, Any]:
    """Return the pod, with the image for python3 from the cluster's settings."""
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
        # Enforced by the cluster, even if the control plane is lost.
        "activeDeadlineSeconds": spec.seconds,
        # Its work can be repeated from files and hashes, so it needs no time to save anything.
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        # As in pods of jobs: otherwise the namespace's services would add variables to the environment.
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": name} for name in profile.image_pull_secrets],
        "nodeName": spec.node,
        # With a fixed node, the kubelet refuses a pod whose node selector does not match.
        "nodeSelector": {} if spec.node else dict(profile.node_selector),
        "tolerations": [dict(one) for one in profile.tolerations],
        "securityContext": manifests.pod_security(profile),
        "containers": [manifests.without_empty(container)],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": spec.claim}}],
    }
    metadata = metadata_of(spec.name, spec.project, profile, **spec.labels)
    return names.manifest("Pod", metadata, spec=manifests.without_empty(body))
