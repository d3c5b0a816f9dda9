"""Remove the anchors of finished attempts, and with them all objects that they own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime

from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.api_errors import refusals
from controlplane.engines.kubernetes.objects import Objects
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.names import Raw

# Together with the interval of the project sync less than a minute: no orphan may remain for longer.
SWEEP_SECONDS = 15.0
# The minimum age of an anchor: a delayed start request finds in it that its pod has existed already.
GRACE_SECONDS = 40.0


class Sweeper:
    """Removes old anchors. Used by one thread at a time, of the process that holds the loop's lease. `clock` returns
    monotonic seconds."""

    def __init__(
        self, client: Client, objects: Objects, installation: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._objects, self._installation = client, objects, installation
        self._clock = clock
        self._swept_at = float("-inf")

    def sweep(self, pods: Iterable[Raw]) -> None:
        """Remove old anchors that belong to none of `pods`, which are all pods of this installation. Runs once per
        period; other calls return at once. Raise EngineRefused on every call while removal is forbidden."""
        if self._clock() - self._swept_at < SWEEP_SECONDS:
            return
        # Taken before the sweep, but stored only after its success, so that a refused sweep is repeated at the next
        # call.
        began_at, used = self._clock(), {_attempt(pod) for pod in pods}
        query = {"labelSelector": names.ours(self._installation)}
        with refusals():
            for anchor in self._client.get(names.list_path("ConfigMap"), query)["items"]:
                path, metadata = names.path_of(anchor, "ConfigMap"), anchor["metadata"]
                made_at = datetime.fromisoformat(metadata["creationTimestamp"])
                is_old = (self._client.server_time() - made_at).total_seconds() > GRACE_SECONDS
                if is_old and _attempt(anchor) not in used and not self._objects.is_in_use(path):
                    # A 409 means a newer anchor of the same name.
                    with refusals(409):
                        self._client.delete(path, uid=metadata["uid"])
        self._swept_at = began_at


def _attempt(raw: Raw) -> tuple[str, str, str]:
    labels = raw["metadata"].get("labels") or {}
    return raw["metadata"]["namespace"], labels.get(names.JOB_ID, ""), labels.get(names.ATTEMPT, "")
