"""Volumes as PersistentVolumeClaims of a Kubernetes cluster, and snapshots as VolumeSnapshots (v1).

Object names contain our id, the idempotency key: an existing object is assumed to come from an earlier try.
Storage drivers may take long, so readiness is awaited by a watch; at the time limit the error contains the
driver's message. A claim whose class binds with the first pod (WaitForFirstConsumer) counts as ready while
unbound.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.clusters import quantities
from controlplane.engines.base import NOT_PERMITTED
from controlplane.engines.kubernetes.api_errors import blocked_by
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.remote_errors import Unreachable
from datasets.storage.base import UNLIMITED, Blocked, Budget, ContentMissing
from datasets.storage.claims import (
    CLAIM_DELETED,
    NAMESPACE_DELETED,
    NOT_DELETED,
    NOT_PROVISIONED,
    claim_name,
    snapshot_name,
    trouble_of,
)
from datasets.storage.refusals import one_line
from datasets.storage.volume_files import Measured
from datasets.storage.volumes import BlockSnapshots, Cut, Report, silent

GROUP = "snapshot.storage.k8s.io"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
# Where events about objects without a namespace are.
CLUSTER_EVENTS = "/api/v1/namespaces/default/events"
SNAPSHOT_CLASSES = f"/apis/{GROUP}/v1/volumesnapshotclasses"
# How long a driver may take. CSI sidecars retry a failed call after 1 s, then with doubled pauses, up to 5
# minutes.
PROVISION_SECONDS, SNAPSHOT_SECONDS, RESIZE_SECONDS = 120.0, 300.0, 120.0
# How long a driver may copy the content of a snapshot elsewhere that it has taken, as those of clouds do.
UPLOAD_SECONDS = 24 * 3600.0
# How long a try waits for a driver that deletes a snapshot; later tries only look, so that they keep no thread.
DELETE_SECONDS = 3.0
# A watch is renewed after this time, to detect a cancelled command.
WATCH_SECONDS = 5
# The pause after a watch that failed.
UNWATCHED_SECONDS = 1.0
_DEFAULT = ("storageclass.kubernetes.io/is-default-class", "snapshot.storage.kubernetes.io/is-default-class")

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClaimKind:
    """Parameters of new claims. `storage_class`: the name of their class, "" for the cluster's default.
    `access_mode`: as in Kubernetes."""

    storage_class: str
    size_bytes: int
    access_mode: str


class CsiVolumes(BlockSnapshots):
    """Manages the PersistentVolumeClaims and VolumeSnapshots of one project, in `namespace` and labelled `labels`.

    `kind`: storage class, size and access mode of new claims. `prepare` creates the namespace; it is called before
    a claim is created, but not by calls that only read. `seconds`: how long to wait for the CSI driver, None for
    the default of each operation.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        labels: Mapping[str, str],
        kind: ClaimKind,
        prepare: Callable[[], object] = lambda: None,
        seconds: float | None = None,
    ) -> None:
        self._client, self._labels, self._kind, self._seconds = client, dict(labels), kind, seconds
        self._prepare, self._namespace = prepare, f"/api/v1/namespaces/{namespace}"
        self._claims = f"{self._namespace}/persistentvolumeclaims"
        self._snapshots = f"/apis/{GROUP}/v1/namespaces/{namespace}/volumesnapshots"
        self._events = f"/api/v1/namespaces/{namespace}/events"

    def provision(self, volume: str, budget: Budget = UNLIMITED) -> None:
        """Create an empty volume, unless it exists, and wait for it. Raises Blocked with the driver's message if
        that fails or exceeds the time limit, and what `budget` raises."""
        self._make_claim(volume, None, self._kind.size_bytes, budget)

    def clone(self, volume: str, source: str, budget: Budget = UNLIMITED, report: Report = silent) -> None:
        """Create a volume with another one's content. Raises ContentMissing if there is no `source`, Blocked if the
        cluster refuses or is not done within the time limit, and what `budget` raises."""
        found = self._get(f"{self._claims}/{claim_name(source)}", "The source volume")
        size = max(
            self._kind.size_bytes, _bytes_of((found.get("status") or {}).get("capacity", {}).get("storage"))
        )
        origin = {"kind": "PersistentVolumeClaim", "name": claim_name(source)}
        self._make_claim(volume, origin, size, budget)

    def restore(
        self, volume: str, snapshot: str, budget: Budget = UNLIMITED, report: Report = silent
    ) -> None:
        """Create a volume from a snapshot, which stays. Raises ContentMissing if there is no such snapshot,
        Blocked as `provision`, and what `budget` raises."""
        found = self._get(f"{self._snapshots}/{snapshot_name(snapshot)}", "The snapshot")
        size = max(self._kind.size_bytes, _bytes_of((found.get("status") or {}).get("restoreSize")))
        origin = {"apiGroup": GROUP, "kind": "VolumeSnapshot", "name": snapshot_name(snapshot)}
        self._make_claim(volume, origin, size, budget)

    def remove(self, volume: str) -> None:
        """Delete a volume's claim with its content. The cluster delays that while a pod mounts it. Does nothing for a
        missing one. Raises Blocked if the cluster refuses."""
        self._delete(f"{self._claims}/{claim_name(volume)}")

    def retier(self, volume: str, service_tier: str, budget: Budget = UNLIMITED) -> None:
        """Do nothing: claims have no tiers."""

    def resize(self, volume: str, size_bytes: int, budget: Budget = UNLIMITED) -> None:
        """Enlarge a volume to `size_bytes`; its file system grows at once or when a pod mounts it. Raises
        ContentMissing if there is no such volume, Blocked if the cluster refuses or is not done within the time
        limit, and what `budget` raises."""
        path = f"{self._claims}/{claim_name(volume)}"
        claim = self._get(path, "The volume")
        try:
            self._client.merge(path, {"spec": {"resources": {"requests": {"storage": str(size_bytes)}}}})
        except ApiError as error:
            raise Blocked("not_resized", self._why_not_resized(claim, error), is_passing=False) from error

        def is_resized(claim: Raw) -> bool:
            status = claim.get("status") or {}
            # The volume is larger by then; its file system grows when the next pod mounts it.
            waits = any(one["type"] == "FileSystemResizePending" for one in status.get("conditions") or ())
            return waits or _bytes_of((status.get("capacity") or {}).get("storage")) >= size_bytes

        seconds = self._seconds or RESIZE_SECONDS
        if self._wait(self._claims, claim_name(volume), is_resized, seconds, budget) is None:
            why = self._event_of(claim_name(volume)) or "its storage class did not answer"
            raise Blocked(
                "not_resized", f"The volume was not resized within {seconds:g} s: {why}", is_passing=False
            )

    def _why_not_resized(self, claim: Raw, error: ApiError) -> str:
        """Return why the cluster refused another size of the claim, and the next step."""
        name = (claim.get("spec") or {}).get("storageClassName")
        try:
            of_claim = [one for one in self._listed(CLASSES) if one["metadata"]["name"] == name]
        except Blocked:
            of_claim = []
        if of_claim and not of_claim[0].get("allowVolumeExpansion"):
            return (
                f"Its size was not changed: the storage class {name} does not allow expansion. An admin of the cluster"
                " can set allowVolumeExpansion: true on the class if its driver supports it; then resize it again."
            )
        refusal = blocked_by(error)
        said = refusal.detail if refusal.code == NOT_PERMITTED else error.message
        return one_line(f"Its size was not changed; the cluster refused: {said.rstrip('.')}.")

    def _take(self, snapshot: str, volume: str, budget: Budget, cut: Cut) -> int:
        claim = self._get(f"{self._claims}/{claim_name(volume)}", "The volume")
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "VolumeSnapshot",
            "metadata": {"name": snapshot_name(snapshot), "labels": self._labels},
            "spec": {
                "volumeSnapshotClassName": self._snapshot_class(claim),
                "source": {"persistentVolumeClaimName": claim_name(volume)},
            },
        }
        self._create(self._snapshots, body)
        last: dict[str, Any] = {}

        def seconds() -> float:
            return self._seconds or (UPLOAD_SECONDS if last.get("creationTime") else SNAPSHOT_SECONDS)

        def is_ready(found: Raw) -> bool:
            last.update(found.get("status") or {})
            # The driver has the content, and may copy it elsewhere for hours before the snapshot is ready.
            if last.get("creationTime"):
                cut()
            return last.get("readyToUse") is True

        if self._wait(self._snapshots, snapshot_name(snapshot), is_ready, seconds, budget) is None:
            said = (last.get("error") or {}).get("message") or self._event_of(snapshot_name(snapshot))
            words = (
                f"The snapshot was not ready within {seconds():g} s: {said or 'its driver did not answer'}"
            )
            raise Blocked("snapshot_not_ready", one_line(words), is_passing=False)
        return _bytes_of(last.get("restoreSize"))

    def has_snapshot(self, snapshot: str) -> bool:
        """Return whether the cluster was asked for a snapshot, ready or not. Raises Blocked if the cluster refuses."""
        return self._found(f"{self._snapshots}/{snapshot_name(snapshot)}") is not None

    def remove_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot; volumes created from it stay. Does nothing for a missing one. Raises Blocked if the
        cluster refuses, and with NOT_DELETED while the driver has not deleted it."""
        name = snapshot_name(snapshot)
        found = self._found(f"{self._snapshots}/{name}")
        if found is None:
            return
        # Set by an earlier try, or by hand.
        is_begun = bool(found["metadata"].get("deletionTimestamp"))
        self._delete(f"{self._snapshots}/{name}")
        if (left := self._left(name, 0 if is_begun else DELETE_SECONDS)) is not None:
            said = self._said_of_deletion(left) or "its driver did not answer."
            raise Blocked(NOT_DELETED, f"It is not deleted yet: {said}")

    def _left(self, name: str, seconds: float) -> Raw | None:
        """Return a VolumeSnapshot that still exists after `seconds`, None once it is gone."""
        ends = time.monotonic() + seconds
        while (found := self._found(f"{self._snapshots}/{name}")) is not None:
            if (left := ends - time.monotonic()) <= 0:
                return found
            self._watched(self._snapshots, found, lambda _: False, left)
        return None

    def measure(self, volume: str, budget: Budget, most_files: int) -> Measured | None:
        """Return None: only a pod that mounts the volume can measure it."""
        return None

    def trouble(self, volume: str) -> str:
        """Return the problem of a volume's claim as a code of storage.claims, "" if it has none. Raises Blocked if
        the cluster refuses the request."""
        try:
            return trouble_of(self._client.get(f"{self._claims}/{claim_name(volume)}"))
        except ApiError as error:
            if error.status == 404:
                return CLAIM_DELETED if self._has_namespace() else NAMESPACE_DELETED
            raise blocked_by(error) from error

    def _has_namespace(self) -> bool:
        try:
            found: Raw = self._client.get(self._namespace)
        except ApiError as error:
            if error.status == 404:
                return False
            raise blocked_by(error) from error
        return not found["metadata"].get("deletionTimestamp")

    def _make_claim(self, volume: str, origin: Raw | None, size_bytes: int, budget: Budget) -> None:
        storage_class = self._storage_class()
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim_name(volume), "labels": self._labels},
            "spec": {
                "accessModes": [self._kind.access_mode],
                "storageClassName": storage_class["metadata"]["name"],
                "resources": {"requests": {"storage": str(size_bytes)}},
                **({"dataSource": dict(origin)} if origin else {}),
            },
        }
        self._prepare()
        self._create(self._claims, body)
        # The driver creates nothing until a pod mounts the claim.
        if storage_class.get("volumeBindingMode") == "WaitForFirstConsumer":
            return
        seconds = self._seconds or PROVISION_SECONDS
        if self._wait(self._claims, claim_name(volume), _is_bound, seconds, budget) is None:
            said = self._event_of(claim_name(volume)) or "its provisioner did not answer"
            # A driver may copy the content file by file; the next try goes on waiting.
            words = f"It is not made yet: {said}" if origin else f"No volume within {seconds:g} s: {said}"
            raise Blocked(NOT_PROVISIONED, words, is_passing=bool(origin))

    def _storage_class(self) -> Raw:
        """Return the storage class of new claims. Raises Blocked if it does not exist; the message names the
        existing ones."""
        classes = self._listed(CLASSES)
        wanted = self._kind.storage_class
        found = [
            one for one in classes if wanted == one["metadata"]["name"] or (not wanted and _is_default(one))
        ]
        if found:
            return found[0]
        names = ", ".join(one["metadata"]["name"] for one in classes) or "none"
        missing = f"no storage class {wanted}" if wanted else "no default storage class"
        raise Blocked("no_such_class", f"The cluster has {missing}; there are: {names}.", is_passing=False)

    def _snapshot_class(self, claim: Raw) -> str:
        """Return the snapshot class of the claim's driver. Raises Blocked if there is none."""
        name = (claim.get("spec") or {}).get("storageClassName")
        drivers = [one["provisioner"] for one in self._listed(CLASSES) if one["metadata"]["name"] == name]
        of_driver = [one for one in self._listed(SNAPSHOT_CLASSES) if one["driver"] in drivers]
        if not of_driver:
            words = f"The cluster has no VolumeSnapshotClass for the driver of the storage class {name}."
            raise Blocked("no_snapshot_class", words, is_passing=False)
        chosen: str = min(of_driver, key=lambda one: not _is_default(one))["metadata"]["name"]
        return chosen

    def _listed(self, path: str) -> list[Raw]:
        try:
            found: list[Raw] = self._client.get(path)["items"]
        except ApiError as error:
            # Of all that is listed, only the classes of snapshots may be unknown to a cluster.
            if error.status == 404:
                words = (
                    "The cluster has no snapshots: it lacks the CustomResourceDefinitions of VolumeSnapshots"
                )
                raise Blocked(
                    "no_snapshots", f"{words} and their controller; an admin installs them.", is_passing=False
                ) from error
            raise blocked_by(error) from error
        return found

    def _create(self, collection: str, body: Raw) -> None:
        try:
            self._client.create(collection, body)
        except ApiError as error:
            # The name contains our id, so the object comes from an earlier try.
            if error.reason != "AlreadyExists":
                raise blocked_by(error, is_passing=False) from error

    def _delete(self, path: str) -> None:
        try:
            self._client.delete(path)
        except ApiError as error:
            raise blocked_by(error) from error

    def _found(self, path: str) -> Raw | None:
        try:
            return self._client.find(path)
        except ApiError as error:
            raise blocked_by(error) from error

    def _get(self, path: str, what: str) -> Raw:
        try:
            found: Raw = self._client.get(path)
        except ApiError as error:
            if error.status == 404:
                raise ContentMissing(f"{what} is not in the cluster (any more).") from error
            raise blocked_by(error) from error
        # A finalizer may keep the object for a while, but it must not be used as a source any more.
        if found["metadata"].get("deletionTimestamp"):
            raise ContentMissing(f"{what} is being deleted in the cluster.")
        return found

    def _wait(
        self,
        collection: str,
        name: str,
        is_done: Callable[[Raw], bool],
        seconds: float | Callable[[], float],
        budget: Budget,
    ) -> Raw | None:
        """Return the object `name` of the resource `collection` once `is_done` returns True for it, None after
        `seconds`, which may change meanwhile. Raises ContentMissing if it is deleted, and what `budget` raises."""
        began = time.monotonic() - budget.waited_seconds
        while True:
            budget.check()
            found = self._get(f"{collection}/{name}", "The object that was being created")
            if is_done(found):
                return found
            left = began + (seconds() if callable(seconds) else seconds) - time.monotonic()
            if left <= 0:
                return None
            if (changed := self._watched(collection, found, is_done, min(WATCH_SECONDS, left))) is not None:
                return changed
            budget.give_way()

    def _watched(
        self, collection: str, found: Raw, is_done: Callable[[Raw], bool], seconds: float
    ) -> Raw | None:
        """Watch the object `found` until a change makes it done and return it; None after `seconds` or when the
        watch ends."""
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={found['metadata']['name']}",
            "resourceVersion": found["metadata"]["resourceVersion"],
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        try:
            with self._client.stream(collection, query, read_timeout_seconds=seconds + 5) as lines:
                for line in lines:
                    change = json.loads(line)
                    # The resource version is too old for a watch, or the object is gone: the caller reads it
                    # again.
                    if change["type"] in ("DELETED", "ERROR"):
                        return None
                    changed: Raw = change["object"]
                    if is_done(changed):
                        return changed
        except (ApiError, Unreachable):
            # The caller reads the object again, and raises an error that persists. Without the right to watch it,
            # it is read once a second.
            time.sleep(min(UNWATCHED_SECONDS, seconds))
        return None

    def _said_of_deletion(self, snapshot: Raw) -> str:
        """Return the cluster's last event about a VolumeSnapshot or its content since its deletion, "" if there is
        none."""
        about, status = snapshot["metadata"], snapshot.get("status") or {}
        found = self._events_about(self._events, about["name"])
        if content := status.get("boundVolumeSnapshotContentName"):
            found += self._events_about(CLUSTER_EVENTS, content)
        return _last_of(event for event in found if _time_of(event) >= str(about.get("deletionTimestamp")))

    def _event_of(self, name: str) -> str:
        """Return the cluster's last event about an object, "" if there is none."""
        return _last_of(self._events_about(self._events, name))

    def _events_about(self, events: str, name: str) -> list[Raw]:
        try:
            found: list[Raw] = self._client.get(events, {"fieldSelector": f"involvedObject.name={name}"})[
                "items"
            ]
        except ApiError:
            # Events only explain: a missing permission to read them must not hide the state itself.
            return []
        return found


def _last_of(events: Iterable[Raw]) -> str:
    """Return the message of the last warning, or of the last event if there is no warning."""
    found = list(events)
    found = [event for event in found if event.get("type") == "Warning"] or found
    return one_line(str(max(found, key=_time_of).get("message") or "")) if found else ""


def _time_of(event: Raw) -> str:
    return str(event.get("lastTimestamp") or "")


def _is_bound(claim: Raw) -> bool:
    return bool((claim.get("status") or {}).get("phase") == "Bound")


def _is_default(found: Raw) -> bool:
    annotations = found["metadata"].get("annotations") or {}
    return any(annotations.get(name) == "true" for name in _DEFAULT)


def _bytes_of(quantity: Any) -> int:
    return int(quantities.pieces(str(quantity))) if quantity else 0
