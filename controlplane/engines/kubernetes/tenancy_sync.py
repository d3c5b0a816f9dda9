"""Keep each project's objects in the cluster equal to the wanted ones, even after manual edits.

All objects of a kind are listed by our label once a minute, and when the wanted objects change; an object that is
already right costs no request. Objects of ours that are no longer wanted are removed, and so are the anchors of
finished attempts, with which the cluster removes all objects that they own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.engines.base import NOT_PERMITTED, EngineRefused
from controlplane.engines.kubernetes import names, tenancy
from controlplane.engines.kubernetes.api_errors import refusal_of, refusals
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.manifests import without
from controlplane.engines.kubernetes.objects import Objects
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.names import Raw

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
# Together with the interval of the project sync less than a minute: no orphan may remain for longer.
SWEEP_SECONDS = 15.0
# The minimum age of a removed anchor: a delayed start request finds in it that its pod has existed already.
GRACE_SECONDS = 40.0
BINDING, NAMESPACE, QUEUE = "RoleBinding", "Namespace", "Queue"
# Kinds of which unwanted objects are removed. Namespaces are removed with their projects (`forget_project`), and
# bindings with their namespaces.
REMOVED = ("ResourceQuota", "NetworkPolicy")


@dataclass(slots=True)
class Syncer:
    """Makes the cluster's objects of our projects equal to the wanted ones. Used by one thread at a time, in the
    process that holds the loop's lease."""

    client: Client
    objects: Objects
    profile: ClusterProfile
    # By identity: an object as we last applied it, and its `_shape` as the cluster returned it, so that an unchanged
    # object costs no request.
    _known: dict[str, tuple[Raw, Raw]] = field(default_factory=dict)
    # The cluster's objects by identity, at the last listing.
    _there: dict[str, Raw] = field(default_factory=dict)
    # The identities of the wanted objects at the last listing: with others, the next one is due at once.
    _wanted: frozenset[str] = frozenset()
    _checked_at: float = float("-inf")
    _swept_at: float = float("-inf")
    # False if the roles cannot be bound; then users of kubectl have no rights, which the cluster check reports.
    _may_bind: bool = True
    _clock: Callable[[], float] = time.monotonic

    def sync(self, wanted: Iterable[Raw], pods: Iterable[Raw]) -> None:
        """Apply the objects of `wanted` that differ from the cluster's, and delete our quotas and network policies in
        the namespaces of wanted projects, and our queues, that are not in it: `wanted` must be complete. Also delete
        old anchors of attempts without a pod in `pods`, which must have all pods of this installation.

        Differences and unwanted objects are found only every CHECK_SECONDS and when the set of wanted objects changes;
        in between only bodies that changed are applied. Raise EngineRefused for the first refused request, after trying
        the rest.
        """
        unswept = self._sweep(pods)
        wanted = tuple(wanted)
        identities = frozenset(_identity(body) for body in wanted)
        is_due = self._clock() - self._checked_at >= CHECK_SECONDS or identities != self._wanted
        if is_due:
            self._may_bind = all(self._has_role(body) for body in tenancy.cluster_roles())
            self._take_stock(wanted)
            self._checked_at, self._wanted = self._clock(), identities
        first = self._sync_all(wanted)
        if is_due:
            self._remove_unwanted()
        if refusal := first or unswept:
            raise refusal

    def _sweep(self, pods: Iterable[Raw]) -> EngineRefused | None:
        """Remove the anchors of attempts without any of `pods` that are older than GRACE_SECONDS; at most once per
        SWEEP_SECONDS. Return a refusal, after which the next call tries again; else None."""
        # Stored only after a success.
        began_at = self._clock()
        if began_at - self._swept_at < SWEEP_SECONDS:
            return None
        used, now = {_attempt(pod) for pod in pods}, self.client.server_time()
        try:
            for anchor in self._list("ConfigMap").values():
                path, metadata = names.path_of(anchor), anchor["metadata"]
                age = now - datetime.fromisoformat(metadata["creationTimestamp"])
                is_left = _attempt(anchor) not in used and not self.objects.is_in_use(path)
                if is_left and age.total_seconds() > GRACE_SECONDS:
                    self._remove(path, anchor)
        except EngineRefused as refusal:
            return refusal
        self._swept_at = began_at
        return None

    def _sync_all(self, wanted: tuple[Raw, ...]) -> EngineRefused | None:
        """Apply the objects that differ. Return the first refusal, None if there was none."""
        first: EngineRefused | None = None
        # The identities of refused objects that other objects are contained in or below.
        refused: set[str] = set()
        for body in wanted:
            is_binding = body["kind"] == BINDING
            # It would be refused because of its refused parent, with a less useful message.
            if _above(body) in refused:
                refused.add(_identity(body))
            elif self._may_bind or not is_binding:
                try:
                    self._sync_one(body)
                except EngineRefused as refusal:
                    if is_binding and refusal.code == NOT_PERMITTED:
                        self._may_bind = False
                        continue
                    first = first or refusal
                    refused.add(_identity(body))
        return first

    def _has_role(self, role: Raw) -> bool:
        """Return whether a ClusterRole exists; create it if our account may. Raise EngineRefused for other refusals."""
        path = names.path_of(role)
        try:
            return self.client.find(path) is not None or bool(self.objects.make(role))
        except ApiError as error:
            # A 403 with any words: those of a proxy before the API server are its own.
            if error.status != 403:
                raise refusal_of(error) from error
        except EngineRefused as refusal:
            if refusal.code != NOT_PERMITTED:
                raise
            log.info("%s cannot be bound: %s", path, refusal)
        return False

    def _sync_one(self, body: Raw) -> None:
        path, known = names.path_of(body), self._known.get(_identity(body))
        if known is not None and known[0] == body:
            return
        if body["kind"] == NAMESPACE:
            self.objects.require_namespace(body)
        # Server-side apply with force would take over another owner's queue.
        if body["kind"] == QUEUE and _identity(body) not in self._there:
            self.objects.check_queue(path)
        with refusals(kind=body["kind"]):
            found = self.client.apply(path, body)
            if extra := added(found, body):
                log.info("%s has fields that its manifest lacks, removing them: %s", path, extra)
                found = self.client.merge(path, {"spec": extra})
        self._known[_identity(body)] = body, _shape(found)

    def _take_stock(self, wanted: tuple[Raw, ...]) -> None:
        """Read the cluster's objects, and forget that those which differ were applied, so that they are applied
        again."""
        self._there = {}
        for kind in dict.fromkeys((*REMOVED, *(body["kind"] for body in wanted))):
            self._there |= self._list(kind)
        known, self._known = self._known, {}
        for body in wanted:
            identity = _identity(body)
            found = self._there.get(identity)
            if found is None:
                continue
            is_as_left = known.get(identity) == (body, _shape(found))
            if (is_as_left or contains(found, body)) and not added(found, body):
                self._known[identity] = body, _shape(found)
            else:
                log.info("%s differs from its manifest; applying it again", names.path_of(body))

    def _remove_unwanted(self) -> None:
        """Delete our objects that are not wanted: those in namespaces of wanted projects, and queues."""
        for identity, found in self._there.items():
            namespace = _above(found)
            is_of_project = namespace in self._wanted and namespace in self._there
            is_removable = found["kind"] == QUEUE or (is_of_project and found["kind"] in REMOVED)
            if identity not in self._wanted and is_removable:
                path = names.path_of(found)
                log.info("%s is not needed any more; removing it", path)
                self._remove(path, found)

    def _remove(self, path: str, found: Raw) -> None:
        # A 409 means that a newer object has this name, which must stay.
        with refusals(409):
            self.client.delete(path, uid=found["metadata"]["uid"])

    def _list(self, kind: str) -> dict[str, Raw]:
        query = {"labelSelector": names.ours(self.profile.installation)}
        try:
            listed = self.client.find(names.list_path(kind), query)
        except ApiError as error:
            if error.status != 403 or kind != BINDING:
                raise refusal_of(error) from error
            listed, self._may_bind = None, False
        # None if the cluster does not define this kind. Objects in a list do not contain their kind.
        found = ({**item, "kind": kind} for item in (listed or {"items": ()})["items"])
        return {_identity(item): item for item in found}


def contains(found: Any, wanted: Any) -> bool:
    """Return whether `found` contains everything in `wanted`. It may contain more, because the server adds fields. A
    quantity in another notation counts as different."""
    if found is None:
        # The server omits empty fields, so an absent one is right if the wanted one is empty.
        return not wanted
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        keys = wanted.keys() - {"kind", "apiVersion"}
        return all(contains(found.get(key), wanted[key]) for key in keys)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(contains, found, wanted))
    return bool(found == wanted)


def added(found: Raw, wanted: Raw) -> Raw:
    """Return the merge patch that removes fields which others added to the object's spec and a server-side apply
    would keep. {} if there are none, or for a kind that is not entirely ours."""
    return _less(found.get("spec") or {}, wanted["spec"]) if wanted["kind"] in REMOVED else {}


def _less(found: Any, wanted: Any) -> Raw:
    patch: Raw = {}
    if not isinstance(found, Mapping) or not isinstance(wanted, Mapping):
        return patch
    for key, value in found.items():
        if key not in wanted:
            patch[key] = None
        elif isinstance(value, list):
            if any(_less(*pair) for pair in zip(value, wanted[key], strict=False)):
                # A merge patch can replace a list only as a whole.
                patch[key] = wanted[key]
        elif less := _less(value, wanted[key]):
            patch[key] = less
    return patch


def _attempt(raw: Raw) -> tuple[str, str, str]:
    labels = raw["metadata"].get("labels") or {}
    return raw["metadata"]["namespace"], labels.get(names.JOB_ID, ""), labels.get(names.ATTEMPT, "")


def _identity(body: Raw) -> str:
    metadata = body["metadata"]
    return f"{body['kind']}/{metadata.get('namespace', '')}/{metadata['name']}"


def _above(body: Raw) -> str:
    """Return the identity of the object's parent: its namespace, or the Queue above it."""
    if body["kind"] == QUEUE:
        return f"{QUEUE}//{body['spec'].get('parentQueue', '')}"
    return f"{NAMESPACE}//{body['metadata'].get('namespace', '')}"


def _shape(found: Raw) -> Raw:
    """Return what identifies an edit of an object: its content without status and without metadata other than labels
    and annotations."""
    noted = {key: found["metadata"].get(key) or {} for key in ("labels", "annotations")}
    return without(found, "status", "metadata", "kind", "apiVersion") | noted
