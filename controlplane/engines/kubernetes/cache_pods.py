"""The objects for a project's caches: the volume claim, and the pod that fills and clears it.

Pure, except that the pod's program is read from its file once.
"""

from __future__ import annotations

from typing import Any

from controlplane.engines.kubernetes import cache_fill, data_pod_objects, manifests
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.data_pod_objects import DataPodSpec
from controlplane.engines.kubernetes.pod_scripts import python
from datasets.storage.claims import CACHE_CLAIM, CacheTask

POD = "trainyard-cache-filler"
TASK = "trainyard.io/cache-task"
ROOT = "/caches"


def claim(project: str, profile: ClusterProfile) -> dict[str, Any]:
    """Return the claim of the volume that holds a project's caches."""
    metadata = data_pod_objects.metadata_of(CACHE_CLAIM, project, profile)
    return manifests.claim_of(metadata, "ReadWriteMany", profile.cache_storage_class, profile.cache_size)


def pod(project: str, profile: ClusterProfile, task: CacheTask) -> dict[str, Any]:
    """Return the pod of a task. Its fixed name is the lock of the volume: a namespace has at most one such pod."""
    env = {
        cache_fill.ROOT: ROOT,
        cache_fill.KEY: task.key,
        cache_fill.KEEP: ",".join(task.keep),
        cache_fill.URL: task.url,
        cache_fill.TOKEN: task.token,
        cache_fill.HASH: task.digest,
    }
    spec = DataPodSpec(POD, project, CACHE_CLAIM, ROOT, python(cache_fill), env, {TASK: task.name})
    return data_pod_objects.pod(spec, profile)
