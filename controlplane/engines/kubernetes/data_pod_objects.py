"""The pods that work for the control plane on a project's claim: to fill its caches, or to read what its jobs wrote.

No I/O, except that a pod's program is read from its file once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.engines.kubernetes import cache_fill, manifests, names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.pod_scripts import python
from controlplane.kubernetes_api.names import FIELD_MANAGER
from datasets.storage.claims import CACHE_CLAIM, CacheClaim, CacheTask

CACHE_POD, CACHE_TASK, CACHE_ROOT = "trainyard-cache-filler", "trainyard.io/cache-task", "/caches"


def cache_pod_name(claim: str) -> str:
    """Return the name of the pod that works on the caches of a claim; one per claim."""
    return CACHE_POD + claim.removeprefix(CACHE_CLAIM)


def cache_pod(project: str, profile: ClusterProfile, claim: CacheClaim, task: CacheTask) -> dict[str, Any]:
    """Return the manifest of the pod that runs a cache task. The pod's name depends on the claim only, so that at
    most one such pod works on the claim's volume."""
    env = {
        cache_fill.ROOT: CACHE_ROOT,
        cache_fill.KEY: task.key,
        cache_fill.KEEP: ",".join(task.keep),
        cache_fill.URL: task.url,
        cache_fill.TOKEN: task.token,
        cache_fill.HASH: task.digest,
    }
    return pod(
        cache_pod_name(claim.name),
        project,
        profile,
        claim=claim.name,
        root=CACHE_ROOT,
        command=python(cache_fill),
        env=env,
        labels={CACHE_TASK: task.name},
        among=claim.nodes,
    )


def pod(
    name: str,
    project: str,
    profile: ClusterProfile,
    *,
    claim: str,
    root: str,
    command: Sequence[str],
    env: Mapping[str, str] = {},
    labels: Mapping[str, str] = {},
    is_read_only: bool = False,
    seconds: int | None = None,
    node: str = "",
    among: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a pod that mounts the claim at `root` and runs `command` with the cluster's image for python3.
    `seconds`: its longest run time, None: unlimited. `node`: the node on which it must run; "" leaves the choice to
    the cluster's scheduler, `among` these nodes if any are given."""
    container = {
        "name": names.MAIN_CONTAINER,
        "image": profile.images.get(profile.code_image) or profile.code_image or profile.default_image,
        "imagePullPolicy": profile.image_pull_policy,
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in env.items()],
        # So that DataPod finds the program's last line in the container's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": manifests.container_security(profile),
        "volumeMounts": [{"name": "data", "mountPath": root, **({"readOnly": True} if is_read_only else {})}],
    }
    body = {
        "restartPolicy": "Never",
        # Enforced by the cluster, even if the control plane is lost.
        "activeDeadlineSeconds": seconds,
        # Its work can be repeated from files and hashes, so it needs no time to save anything.
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        # As in pods of jobs: otherwise the namespace's services would add variables to the environment.
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": secret} for secret in profile.image_pull_secrets],
        "nodeName": node,
        # With a fixed node, the kubelet refuses a pod whose node selector does not match.
        "nodeSelector": {} if node else dict(profile.node_selector),
        "affinity": manifests.on_nodes(among),
        "tolerations": [dict(one) for one in profile.tolerations],
        "securityContext": manifests.pod_security(profile),
        "containers": [manifests.without_empty(container)],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    }
    metadata = metadata_of(name, project, profile, **labels)
    return names.manifest("Pod", metadata, spec=manifests.without_empty(body))


def metadata_of(name: str, project: str, profile: ClusterProfile, **more: str) -> dict[str, Any]:
    """Return metadata without our label of jobs' pods, so that the engine does not report this object as a pod of a
    job."""
    labels = {names.MANAGED_BY: FIELD_MANAGER, names.PROJECT: project, names.DATA_OF: profile.installation}
    return profile.metadata(name, project, {**labels, **more})
