"""The caches of one project at a location: a volume in its namespace, on which at most one pod at a time works.

The pod downloads contents from the control plane and verifies them (cache_fill.py); this module follows its log
for the progress. If the caller dies, the pod continues, and a repeat of the task follows the same pod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controlplane.commands.errors import GivesWay
from controlplane.engines.kubernetes import cache_fill, data_pod_objects, manifests
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.data_pods import START_SECONDS, DataPod, phase_of
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.remote_errors import Unreachable
from datasets.storage.base import Blocked, Budget
from datasets.storage.claims import CLAIM_DELETED, CLAIM_LOST, CacheClaim, CacheTask, trouble_of

# Temporary reasons of a refusal: the control plane did not answer, or another task uses the volume.
UNREACHABLE, IN_USE = "unreachable", "in_use"
# By exit code; "": the server lacks a content.
_REASONS = {
    cache_fill.MISSING: "",
    cache_fill.DAMAGED: "",
    cache_fill.NOT_FETCHED: UNREACHABLE,
    cache_fill.DISK_FULL: "disk_full",
    cache_fill.NOT_WRITABLE: "not_writable",
}

# Files and bytes of the version that are present, and bytes that were fetched.
Report = Callable[[int, int, int], None]


class CacheVolume:
    """A volume with caches of one project, and the pod that works on it. `prepare` creates the project's namespace;
    it is called only before a fill."""

    def __init__(
        self,
        client: Client,
        project: str,
        profile: ClusterProfile,
        claim: CacheClaim,
        prepare: Callable[[], object],
    ) -> None:
        self._project, self._profile, self._claim, self._prepare = project, profile, claim, prepare
        pod = data_pod_objects.cache_pod_name(claim.name)
        self._pod = DataPod(client, profile.namespace_of(project), pod, "fills caches")

    def run(self, task: CacheTask, budget: Budget, report: Report = lambda *counts: None) -> Sequence[str]:
        """Run a task in the pod and return the keys of the trees that exist afterwards.

        Raise Blocked if the pod cannot run or fails, ContentMissing if the server lacks a content, what `budget`
        raises, and Unreachable while the pod's log cannot be read; a repeat continues with the same pod. A task that
        only removes trees creates no namespace and no claim: without the claim, or its volume, there is nothing to
        remove.
        """
        if task.key:
            self._prepare()
            self._require_claim()
        elif self.trouble() in (CLAIM_DELETED, CLAIM_LOST):
            # One of an earlier task, whose caller died.
            self._pod.remove()
            return ()
        self._start(task)
        try:
            keys = self._follow(budget, report)
        except (Unreachable, GivesWay):
            # Only the caller gives up; the pod continues.
            raise
        except BaseException:
            self._pod.remove()
            raise
        self._pod.remove()
        return keys

    def trouble(self) -> str:
        """Return what is wrong with the claim, a code of storage.claims; "" if nothing is. Raises as `DataPod`."""
        found = self._pod.claim(self._claim.name)
        return CLAIM_DELETED if found is None else trouble_of(found)

    def delete(self) -> None:
        """Delete the claim with all caches on it; does nothing if it is gone. Raises as `DataPod`."""
        self._pod.remove()
        self._pod.delete_claim(self._claim.name)

    def _require_claim(self) -> None:
        """Create the claim if it is missing. Raise Blocked if the cluster lost its volume, because no pod would
        start."""
        claim, profile = self._claim, self._profile
        metadata = data_pod_objects.metadata_of(claim.name, self._project, profile)
        storage_class = claim.storage_class or profile.cache_storage_class
        size = str(claim.size_bytes) if claim.size_bytes else profile.cache_size
        is_new = self._pod.create(manifests.claim_of(metadata, claim.access_mode, storage_class, size))
        if not is_new and self.trouble() == CLAIM_LOST:
            words = f"The cluster lost its PersistentVolume. Delete the claim {self._claim.name}; it is created again."
            raise Blocked(CLAIM_LOST, words)

    def _start(self, task: CacheTask) -> None:
        """Create the pod for this task, or find the one that an earlier call for this task created. Raise Blocked
        while the pod of another task, or one that is being deleted, exists, and if the cluster refuses the pod."""
        if self._pod.create(data_pod_objects.cache_pod(self._project, self._profile, self._claim, task)):
            return
        found = self._pod.found()
        if found is not None and found["metadata"]["labels"].get(data_pod_objects.CACHE_TASK) == task.name:
            if not found["metadata"].get("deletionTimestamp"):
                return
        elif found is not None and phase_of(found) in ("Succeeded", "Failed"):
            # A pod that its caller could not remove because it died.
            self._pod.remove()
        raise Blocked(IN_USE, "Another cache of the project is being filled or cleared there.")

    def _follow(self, budget: Budget, report: Report) -> Sequence[str]:
        keys: Sequence[str] | None = None
        words = "The log of the pod that fills caches was not read to its end."
        try:
            printed = self._pod.printed(
                budget, _REASONS, "fill_failed", is_passing=True, seconds=START_SECONDS, gives_way=True
            )
            for said in printed:
                keys = said.get("keys", keys)
                if "progress" in said:
                    report(*said["progress"])
        except ApiError as error:
            raise Unreachable(words) from error
        if keys is None:
            raise Unreachable(words)
        return keys
