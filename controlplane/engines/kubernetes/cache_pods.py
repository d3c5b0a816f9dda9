"""The pod that fills and clears the volume of a project's caches, and the volume. Pure, but for reading its script
once."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from controlplane.engines.kubernetes import cache_fill, manifests, names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.kubernetes_api.names import FIELD_MANAGER
from datasets.storage.claims import CACHE_CLAIM, CacheTask

POD, CONTAINER = "trainyard-cache-filler", "fill"
TASK = "trainyard.io/cache-task"
ROOT = "/caches"


def claim(project: str, profile: ClusterProfile) -> dict[str, Any]:
    """Return the claim of a project's caches."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CACHE_CLAIM, "labels": _labels(project, profile)},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": profile.cache_storage_class,
            "resources": {"requests": {"storage": profile.cache_size}},
        },
    }


def pod(project: str, profile: ClusterProfile, task: CacheTask) -> dict[str, Any]:
    """Return the pod of a task. Its name is the lock of the volume: there is one such pod in a namespace."""
    variables = {
        cache_fill.ROOT: ROOT,
        cache_fill.KEY: task.key,
        cache_fill.KEEP: ",".join(task.keep),
        cache_fill.URL: task.url,
        cache_fill.TOKEN: task.token,
        cache_fill.HASH: task.digest,
    }
    container = {
        "name": CONTAINER,
        "image": profile.images.get(profile.code_image) or profile.code_image or profile.default_image,
        "imagePullPolicy": profile.image_pull_policy,
        "command": ["python3", "-I", "-c", _script()],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": manifests.container_security(profile),
        "volumeMounts": [{"name": "caches", "mountPath": ROOT}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "labels": {**_labels(project, profile), TASK: task.name}},
        "spec": manifests.without_empty(
            {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "imagePullSecrets": [{"name": name} for name in profile.image_pull_secrets],
                "nodeSelector": dict(profile.node_selector),
                "tolerations": [dict(one) for one in profile.tolerations],
                "securityContext": manifests.pod_security(profile),
                "containers": [manifests.without_empty(container)],
                "volumes": [{"name": "caches", "persistentVolumeClaim": {"claimName": CACHE_CLAIM}}],
            }
        ),
    }


def _labels(project: str, profile: ClusterProfile) -> Mapping[str, str]:
    """Return labels without that of the installation: the pod is no job's."""
    return {names.MANAGED_BY: FIELD_MANAGER, names.PROJECT: project, names.CACHES_OF: profile.installation}


@cache
def _script() -> str:
    """Return the program. `$(` in it would be a variable to Kubernetes; there is none."""
    return inspect.getsource(cache_fill)
