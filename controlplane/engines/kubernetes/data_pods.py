"""Create, await and remove the pods that work on claims for the control plane (data_pod_objects.py)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.api_errors import blocked_by
from controlplane.engines.kubernetes.pod_scripts import last_line, without_python
from controlplane.engines.kubernetes.reports import main_status
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.names import Raw
from controlplane.remote_errors import Unreachable
from datasets.storage.base import Blocked, Budget, ContentMissing

# The time for provisioning the volume and pulling the image.
START_SECONDS = 600.0
# A watch ends after this time, so that a cancelled command is noticed.
WATCH_SECONDS = 2
# A pod that has nothing to print for longer counts as unreachable.
SILENCE_SECONDS = 60.0
# A kubelet restart may make a running pod's log unreadable for this long.
UNREAD_SECONDS = 60.0


class DataPod:
    """One pod that works on claims for the control plane. `work`: what it does, for messages, such as "fills
    caches". Unless stated otherwise, methods raise Blocked if the cluster refuses a request, and Unreachable if it does
    not answer."""

    def __init__(self, client: Client, namespace: str, name: str, work: str) -> None:
        self._client, self._name, self._work = client, name, work
        self._pods = names.list_path("Pod", namespace)
        self._claims = names.list_path("PersistentVolumeClaim", namespace)
        self.path = f"{self._pods}/{name}"

    def create(self, body: Mapping[str, Any]) -> bool:
        """Create an object in the cluster; return False if it exists already."""
        with _refusals():
            try:
                self._client.create(names.list_path(body["kind"], body["metadata"]["namespace"]), body)
                return True
            except ApiError as error:
                # Names are fixed per task, so a repeat finds what the first try created.
                if error.reason != "AlreadyExists":
                    raise
        return False

    def found(self) -> Raw | None:
        """Return the pod's object, None if there is none."""
        return self._read(self.path)

    def claim(self, name: str) -> Raw | None:
        """Return a claim in the pod's namespace, None if there is none."""
        return self._read(f"{self._claims}/{name}")

    def delete_claim(self, name: str) -> None:
        """Delete a claim in the pod's namespace; does nothing if it is gone."""
        with _refusals():
            self._client.delete(f"{self._claims}/{name}")

    def _read(self, path: str, query: Mapping[str, str] = {}) -> Raw | None:
        with _refusals():
            return self._client.find(path, query)

    def others(self, **selectors: str) -> Sequence[Raw]:
        """Return the other pods of the namespace. `selectors`: labelSelector, fieldSelector."""
        found = self._read(self._pods, selectors) or {"items": []}
        return [pod for pod in found["items"] if pod["metadata"]["name"] != self._name]

    def remove_older(self, seconds: float, label_selector: str) -> None:
        """Delete other pods that match and are older than `seconds`: their callers died before they deleted them."""
        for pod in self.others(labelSelector=label_selector):
            made_at = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
            if (self._client.server_time() - made_at).total_seconds() > seconds:
                self._delete(f"{self._pods}/{pod['metadata']['name']}")

    def started(self, budget: Budget, seconds: float = START_SECONDS, *, gives_way: bool = False) -> Raw:
        """Block until the pod runs or has ended, and return it. `gives_way`: other work may end the wait, since the
        caller leaves the pod for a repeat. Raise Blocked if it was deleted or does not start within `seconds`, and what
        `budget` raises."""
        deadline = time.monotonic() + seconds - (budget.waited_seconds if gives_way else 0)
        while True:
            budget.check()
            pod = self.found()
            if pod is None:
                raise Blocked("pod_deleted", f"The pod that {self._work} was deleted in the cluster.")
            if phase_of(pod) != "Pending":
                return pod
            if time.monotonic() > deadline:
                words = f"The pod that {self._work} did not start within {seconds:g} s: {_waits(pod)}"
                raise Blocked("pod_not_started", line(words))
            self.wait(pod)
            if gives_way:
                budget.give_way()

    def wait(self, pod: Raw) -> None:
        """Block until the pod changes, at most WATCH_SECONDS. Does not raise if the cluster does not answer."""
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self._name}",
            # The watch begins at the version that was read, so that no change in between is missed.
            "resourceVersion": pod["metadata"]["resourceVersion"],
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        try:
            with self._client.stream(self._pods, query, read_timeout_seconds=WATCH_SECONDS + 5) as lines:
                next(iter(lines), None)
        except (ApiError, Unreachable):
            # The caller reads the pod again in any case.
            return

    def remove(self) -> None:
        """Delete the pod. A failure is ignored: a later task of this name finds the pod, and `remove_older` deletes
        old ones."""
        self._delete(self.path)

    def _delete(self, path: str) -> None:
        try:
            # Grace 0 would delete the object before the kubelet has ended the pod.
            self._client.delete(path, grace_seconds=1)
        except (ApiError, Unreachable):
            return

    def printed(
        self,
        budget: Budget,
        reasons: Mapping[int, str],
        otherwise: str,
        *,
        is_passing: bool,
        seconds: float,
        gives_way: bool = False,
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the JSON objects that the pod's program prints, until it has ended; {} for any other line. `seconds`:
        the longest time until it starts; `gives_way`: as in `started`.

        Raise Blocked with the reason that `reasons` has for the program's exit code, or `otherwise`; ContentMissing
        for a code with the reason ""; ApiError or Unreachable if the log of the ended pod cannot be read; and what
        `budget` raises. `is_passing`: whether the exit code's failure may pass.
        """
        seen, read_at = 0, time.monotonic()
        query = {"container": names.MAIN_CONTAINER, "follow": "true"}
        while True:
            pod, trouble = self.started(budget, seconds, gives_way=gives_way), None
            try:
                with self._client.stream(
                    f"{self.path}/log", query, read_timeout_seconds=SILENCE_SECONDS
                ) as lines:
                    read_at = time.monotonic()
                    for number, text in enumerate(lines):
                        budget.check()
                        # Every stream begins at the first line, also after an interruption.
                        if number >= seen:
                            seen += 1
                            yield _parsed(text)
            except (ApiError, Unreachable) as error:
                # The log of a pod that has just started may be missing for a moment.
                trouble = error
            if (ended := end_of(pod)) is not None:
                self._require_success(ended, reasons, otherwise, is_passing=is_passing)
                if trouble is not None:
                    raise trouble
                return
            if trouble is None:
                read_at = time.monotonic()
            # A stream that ends for its silence has already lasted SILENCE_SECONDS.
            elif time.monotonic() - read_at > SILENCE_SECONDS + UNREAD_SECONDS:
                where = f"The pod that {self._work} runs on {pod['spec'].get('nodeName')}"
                raise Blocked("log_not_read", line(f"{where}, and its log cannot be read: {trouble}"))
            # The pod object shows the end a moment after its log does, so wait for it.
            self.wait(pod)

    def require_python(self, ended: Raw) -> None:
        """Raise Blocked if the container failed because its image lacks python3. `ended`: from `end_of`."""
        if hint := without_python(ended, self._work):
            raise Blocked("no_python", line(f"{hint} {last_line(ended)}"), is_passing=False)

    def _require_success(
        self, ended: Raw, reasons: Mapping[int, str], otherwise: str, *, is_passing: bool
    ) -> None:
        if not (code := int(ended["exitCode"])):
            return
        self.require_python(ended)
        words, reason = line(last_line(ended) or f"Exit code {code}."), reasons.get(code, otherwise)
        raise Blocked(reason, words, is_passing=is_passing) if reason else ContentMissing(words)


@contextmanager
def _refusals() -> Iterator[None]:
    """Context manager that raises Blocked if the API server refuses a request in its block."""
    try:
        yield
    except ApiError as error:
        # All but an invalid object may pass: a quota is raised, a right is granted, a new namespace becomes usable.
        raise blocked_by(error, is_passing=error.status not in (400, 422)) from error


def phase_of(pod: Raw) -> str:
    """Return the pod's phase, such as Running or Succeeded; Pending if it has no status yet."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def end_of(pod: Raw) -> Raw | None:
    """Return the `terminated` state of the pod's container (`exitCode`, `reason`, `message`); None while it has not
    ended. A failed pod without one, such as an evicted pod, counts as ended with exit code 1 and without a reason."""
    found: Raw | None = (main_status(pod).get("state") or {}).get("terminated")
    if found is None and phase_of(pod) == "Failed":
        return {"exitCode": 1, "message": (pod.get("status") or {}).get("message") or "It was evicted."}
    return found


def _parsed(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _waits(pod: Raw) -> str:
    """Return why a pod has not started, in the cluster's words."""
    waiting = (main_status(pod).get("state") or {}).get("waiting") or {}
    conditions = (pod.get("status") or {}).get("conditions") or ()
    refused = (one["message"] for one in conditions if one.get("status") == "False" and one.get("message"))
    return str(waiting.get("message") or next(refused, "") or waiting.get("reason") or "no reason given")
