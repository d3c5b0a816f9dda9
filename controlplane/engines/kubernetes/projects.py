"""Keeps what the cluster has per project equal to what it should have, also after an edit by hand.

All objects of a kind are listed once a minute, by our label; what was found as it should be costs no call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.engines.base import NOT_PERMITTED, EngineRefused
from controlplane.engines.kubernetes import names, tenancy
from controlplane.engines.kubernetes.client import ApiError, Client
from controlplane.engines.kubernetes.objects import Objects, as_refusal
from controlplane.engines.kubernetes.tenancy import Wanted

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
BINDING = "RoleBinding"

Raw = dict[str, Any]


@dataclass(slots=True)
class _Known:
    """What was last asked for, and what it looked like in the cluster after that."""

    asked: Raw
    found: Raw


@dataclass(slots=True)
class Syncer:
    """Applies what differs. Used by one thread at a time."""

    client: Client
    objects: Objects
    installation: str
    _known: dict[str, _Known] = field(default_factory=dict)
    _checked_at: float = -CHECK_SECONDS
    _may_bind: bool = True  # without it users of kubectl have no rights, which the look at the cluster tells

    def sync(self, wanted: Iterable[Wanted]) -> None:
        """Make the cluster equal to this. Raises EngineRefused for the first that could not be, after the rest."""
        wanted = tuple(wanted)
        if time.monotonic() - self._checked_at >= CHECK_SECONDS:
            self._may_bind = self._has_roles()
            self._take_stock(wanted)
            self._checked_at = time.monotonic()
        first: EngineRefused | None = None
        refused: set[str] = set()  # namespaces
        for one in wanted:
            namespace = one.body["metadata"].get("namespace", "")
            is_binding = one.body["kind"] == BINDING
            if namespace in refused or (is_binding and not self._may_bind):
                continue
            try:
                self._sync_one(one)
            except EngineRefused as refusal:
                if is_binding and refusal.code == NOT_PERMITTED:
                    self._may_bind = False
                    continue
                first = first or refusal
                if one.body["kind"] == "Namespace":
                    refused.add(one.body["metadata"]["name"])
        if first is not None:
            raise first

    def _has_roles(self) -> bool:
        """Whether the roles that projects refer to are there, made now where we may make them."""
        return all(self._has_role(tenancy.wanted(body)) for body in tenancy.cluster_roles())

    def _has_role(self, role: Wanted) -> bool:
        try:
            self.client.get(role.path)
        except ApiError as error:
            if error.status not in (403, 404):
                raise as_refusal(error) from error
            return error.status == 404 and self._made_role(role)
        return True

    def _made_role(self, role: Wanted) -> bool:
        try:
            self.objects.make(role.collection, role.body)
        except EngineRefused as refusal:
            if refusal.code != NOT_PERMITTED:
                raise
            log.info("%s is missing: %s", role.path, refusal)
            return False
        return True

    def _sync_one(self, one: Wanted) -> None:
        known = self._known.get(one.path)
        if known is not None and known.asked == one.body:
            return
        if one.body["kind"] == "Namespace":
            self.objects.require_namespace(one.body)
        try:
            found = self.client.apply(one.path, one.body)
        except ApiError as error:
            raise as_refusal(error) from error
        self._known[one.path] = _Known(one.body, _shape(found))

    def _take_stock(self, wanted: tuple[Wanted, ...]) -> None:
        """Compare with what there is: forget what is not as it should be, so that it is applied again."""
        there: dict[str, Raw] = {}
        for every, collection_kind in {one.every: one.body["kind"] for one in wanted}.items():
            there |= self._list(every, collection_kind)
        known, self._known = self._known, {}
        for one in wanted:
            found = there.get(_identity(one.body))
            if found is None:
                continue
            earlier = known.get(one.path)
            is_as_left = earlier is not None and earlier.asked == one.body and earlier.found == _shape(found)
            if is_as_left or contains(found, one.body):
                self._known[one.path] = _Known(one.body, _shape(found))
            else:
                log.info("%s is not as it should be: it is applied again", one.path)

    def _list(self, every: str, kind: str) -> dict[str, Raw]:
        query = {"labelSelector": names.ours(self.installation)}
        try:
            items = self.client.get(every, query)["items"]
        except ApiError as error:
            if error.status == 404:  # a kind that this cluster does not have (any more)
                return {}
            if error.status == 403 and kind == BINDING:
                self._may_bind = False
                return {}
            raise as_refusal(error) from error
        return {_identity({"kind": kind, **item}): item for item in items}


def contains(found: Any, wanted: Any) -> bool:
    """Whether all that is wanted stands in what was found; the server adds to it and writes quantities anew."""
    if found is None:
        return not wanted  # the server leaves out what says nothing
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            contains(found.get(key), value)
            for key, value in wanted.items()
            if key not in ("kind", "apiVersion")
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(contains(a, b) for a, b in zip(found, wanted, strict=True))
        )
    return bool(found == wanted)


def _identity(body: Raw) -> str:
    metadata = body["metadata"]
    return f"{body['kind']}/{metadata.get('namespace', '')}/{metadata['name']}"


def _shape(found: Raw) -> Raw:
    """An object without what changes by itself."""
    metadata = found["metadata"]
    return {
        key: value for key, value in found.items() if key not in ("status", "metadata", "kind", "apiVersion")
    } | {
        "labels": metadata.get("labels") or {},
        "annotations": metadata.get("annotations") or {},
    }
