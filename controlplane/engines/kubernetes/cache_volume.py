"""The caches of one project in a cluster: a volume in its namespace, on which one pod at a time works.

The pod downloads contents from the control plane and checks them (cache_fill.py); here its log is followed for its
progress. A caller that dies leaves the pod, and a repeat of the task goes on with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from controlplane.engines.kubernetes import cache_fill, cache_pods, names
from controlplane.engines.kubernetes.cache_pods import CONTAINER, POD, TASK
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.names import Raw
from controlplane.remote_errors import Unreachable
from datasets.storage.base import Blocked, Budget, ContentMissing
from datasets.storage.claims import CacheTask

# Until the volume is there and the image is pulled.
START_SECONDS = 600.0
# A watch ends after this time, so that a cancelled command is noticed. The pod reports at least this often.
WATCH_SECONDS, SILENCE_SECONDS = 2, 60.0
# Refused for what passes: the server was away, or another task has the volume.
UNREACHABLE, IN_USE = "unreachable", "in_use"
_BLOCKED = {
    cache_fill.NOT_FETCHED: UNREACHABLE,
    cache_fill.DISK_FULL: "disk_full",
    cache_fill.NOT_WRITABLE: "not_writable",
}

# Files and bytes of the version that are there, and bytes that were brought.
Report = Callable[[int, int, int], None]


class CacheVolume:
    """The volume of one project."""

    def __init__(self, client: Client, project: str, profile: ClusterProfile) -> None:
        self._client, self._project, self._profile = client, project, profile
        self._here = names.namespace_path(profile.namespace_of(project))
        self._pod = f"{self._here}/pods/{POD}"

    def run(self, task: CacheTask, budget: Budget, report: Report = lambda *counts: None) -> Sequence[str]:
        """Carry a task out and return the keys of the trees that are there afterwards. Raises Blocked, ContentMissing
        and what `budget` raises."""
        self._create("persistentvolumeclaims", cache_pods.claim(self._project, self._profile))
        self._start(task)
        try:
            keys = self._follow(budget, report)
        except Unreachable:
            # The pod goes on.
            raise
        except BaseException:
            self._remove()
            raise
        self._remove()
        return keys

    def _start(self, task: CacheTask) -> None:
        """Make the pod, or find that of this task. Raises Blocked while another task has the volume."""
        if self._create("pods", cache_pods.pod(self._project, self._profile, task)):
            return
        found = self._found()
        if found is not None and found["metadata"]["labels"].get(TASK) == task.name:
            if not found["metadata"].get("deletionTimestamp"):
                return
        elif found is not None and _phase(found) in ("Succeeded", "Failed"):
            # What a caller left that died.
            self._remove()
        raise Blocked(IN_USE, "Another cache of the project is being filled or cleared.")

    def _create(self, kind: str, body: Mapping[str, Any]) -> bool:
        """Create an object; return False where it is there."""
        try:
            self._client.create(f"{self._here}/{kind}", body)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return False
            raise Blocked("refused", line(str(error)), is_passing=error.status in (403, 404, 409)) from error
        return True

    def _follow(self, budget: Budget, report: Report) -> Sequence[str]:
        deadline, keys, seen = time.monotonic() + START_SECONDS, list[str](), 0
        while True:
            budget.check()
            pod = self._found()
            if pod is None:
                raise Blocked("pod_deleted", "The pod that fills caches was deleted in the cluster.")
            if _phase(pod) == "Pending":
                if time.monotonic() > deadline:
                    words = (
                        f"The pod that fills caches did not start within {START_SECONDS:g} s: {_waits(pod)}"
                    )
                    raise Blocked("pod_not_started", line(words))
                self._wait(pod)
                continue
            for said in self._lines(seen, budget):
                seen += 1
                keys = said.get("keys", keys)
                if "progress" in said:
                    report(*said["progress"])
            if (ended := _ended(pod)) is None:
                # Its end is in the object a moment after that of its log.
                self._wait(pod)
                continue
            _raise_failure(ended)
            return keys

    def _lines(self, skipped: int, budget: Budget) -> Iterator[Mapping[str, Any]]:
        """Yield what the pod has printed, from a line on, until its log ends or is silent."""
        query = {"follow": "true", "container": CONTAINER}
        try:
            with self._client.stream(
                f"{self._pod}/log", query, read_timeout_seconds=SILENCE_SECONDS
            ) as lines:
                for number, text in enumerate(lines):
                    budget.check()
                    if number >= skipped:
                        yield _parsed(text)
        except (ApiError, Unreachable):
            return

    def _wait(self, pod: Raw) -> None:
        """Return after a change of the pod, or some seconds."""
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={POD}",
            "resourceVersion": pod["metadata"]["resourceVersion"],
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        try:
            with self._client.stream(
                f"{self._here}/pods", query, read_timeout_seconds=WATCH_SECONDS + 5
            ) as lines:
                next(iter(lines), None)
        except (ApiError, Unreachable):
            return

    def _found(self) -> Raw | None:
        try:
            found: Raw = self._client.get(self._pod)
        except ApiError as error:
            if error.status == 404:
                return None
            raise Blocked("refused", line(str(error))) from error
        return found

    def _remove(self) -> None:
        try:
            self._client.delete(self._pod, grace_seconds=1)
        except (ApiError, Unreachable):
            # The next task finds it ended.
            return


def _phase(pod: Raw) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _status(pod: Raw) -> Raw:
    statuses: Sequence[Raw] = (pod.get("status") or {}).get("containerStatuses") or ({},)
    return statuses[0]


def _ended(pod: Raw) -> Raw | None:
    found: Raw | None = (_status(pod).get("state") or {}).get("terminated")
    if found is None and _phase(pod) == "Failed":
        return {"exitCode": 1, "message": (pod.get("status") or {}).get("message") or "It was evicted."}
    return found


def _waits(pod: Raw) -> str:
    """Return what the cluster says of a pod that has not started."""
    waiting = (_status(pod).get("state") or {}).get("waiting") or {}
    conditions = (pod.get("status") or {}).get("conditions") or ()
    refused: Raw = next(
        (one for one in conditions if one.get("status") == "False" and one.get("message")), {}
    )
    return str(waiting.get("message") or refused.get("message") or waiting.get("reason") or "no reason given")


def _raise_failure(ended: Raw) -> None:
    code = int(ended["exitCode"])
    if code == 0:
        return
    words = (str(ended.get("message") or "").strip().splitlines() or [f"Exit code {code}."])[-1]
    if code in (cache_fill.MISSING, cache_fill.DAMAGED):
        raise ContentMissing(line(words))
    if ended.get("reason") in ("StartError", "ContainerCannotRun", "RunContainerError"):
        hint = "The image has no python3, by which caches are filled: name one in the cluster's setting code_image."
        raise Blocked("no_python", line(f"{hint} {words}"), is_passing=False)
    raise Blocked(_BLOCKED.get(code, "fill_failed"), line(words))


def _parsed(text: bytes) -> Mapping[str, Any]:
    """Return a line of the pod's log, {} for one that is none of ours."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
