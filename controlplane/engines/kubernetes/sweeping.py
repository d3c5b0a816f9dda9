"""Removes what attempts left behind: their anchors, and with those all that they own."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.client import ApiError, Client
from controlplane.engines.kubernetes.objects import Objects

SWEEP_SECONDS = 30.0
GRACE_SECONDS = 60.0

Raw = dict[str, Any]


class Sweeper:
    """Used by one thread at a time, of the one process that decides what runs."""

    def __init__(self, client: Client, objects: Objects, installation: str) -> None:
        self._client, self._objects, self._installation = client, objects, installation
        self._swept_at = -SWEEP_SECONDS

    def sweep(self, pods: Iterable[Raw]) -> None:
        """Remove the anchors that none of these pods (all of ours) belongs to, once they are old enough.

        Now and then; a call in between costs nothing.
        """
        if time.monotonic() - self._swept_at < SWEEP_SECONDS:
            return
        self._swept_at = time.monotonic()
        used = {_attempt(pod) for pod in pods}
        found = self._client.get("/api/v1/configmaps", {"labelSelector": names.ours(self._installation)})
        for anchor in found["items"]:
            if _attempt(anchor) not in used and self._is_old(anchor):
                self._remove(anchor)

    def _is_old(self, anchor: Raw) -> bool:
        age = self._client.server_time() - datetime.fromisoformat(anchor["metadata"]["creationTimestamp"])
        return age.total_seconds() > GRACE_SECONDS and not self._objects.was_seen(_path(anchor))

    def _remove(self, anchor: Raw) -> None:
        try:
            self._client.delete(_path(anchor), uid=anchor["metadata"]["uid"])
        except ApiError as error:
            if error.status != 409:  # another one of this name
                raise


def _attempt(raw: Raw) -> tuple[str, str, str]:
    labels = raw["metadata"].get("labels") or {}
    return raw["metadata"]["namespace"], labels.get(names.JOB_ID, ""), labels.get(names.ATTEMPT, "")


def _path(anchor: Raw) -> str:
    return f"/api/v1/namespaces/{anchor['metadata']['namespace']}/configmaps/{anchor['metadata']['name']}"
