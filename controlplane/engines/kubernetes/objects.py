"""Making objects once: a create whose answer was lost, or that another process made too, is found and adopted."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from controlplane.engines.base import NAME_TAKEN, NAMESPACE_NOT_OURS, EngineRefused, EngineUnreachable
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.api_errors import as_refusal
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError

Raw = dict[str, Any]

REMEMBERED_SECONDS = 30.0  # how long an object that we saw is taken for granted
IN_USE_SECONDS = 30.0  # how long an object is spared after somebody asked for it or was at work with it
# The labels that say whose an object is. One that has other values of them is somebody else's.
IDENTITY = (names.INSTALLATION, names.PROJECT, names.JOB_ID, names.ATTEMPT, names.RANK)
_ELSEWHERE = (
    "the project under another name, or delete the cluster's projects or move them away, choose another"
    " namespace_prefix, and create them again."
)


class Objects:
    """Creates in one cluster, for one installation. Thread-safe. `clock` gives seconds that only go forward."""

    def __init__(
        self, client: Client, installation: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._installation, self._clock = client, installation, clock
        self._seen: dict[str, tuple[float, Raw]] = {}
        self._used: dict[str, float] = {}  # when it was last asked for, or somebody was done with it
        self._users = Counter[str]()  # how many are at work with it
        self._tidied_at = clock()
        self._lock = threading.Lock()

    def make(self, collection: str, body: Raw) -> Raw:
        """The object as it is in the cluster: created now, or before, by us. Raises EngineRefused."""
        try:
            created: Raw = self._client.create(collection, body)
            return created
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise as_refusal(error, body["kind"]) from error
        if body["kind"] == "Secret":  # not ours to read; nobody else has a reason to take an attempt's name
            return body
        return self._adopt(f"{collection}/{body['metadata']['name']}", body)

    def make_remembered(self, collection: str, body: Raw) -> Raw:
        """As `make`; an object that was seen a moment ago is not asked for again."""
        path = f"{collection}/{body['metadata']['name']}"
        return self._remembered(path, lambda: self.make(collection, body))

    def require_namespace(self, body: Raw) -> Raw:
        """The namespace, made if it is missing. Raises EngineRefused for one that is not ours."""
        path = f"/api/v1/namespaces/{body['metadata']['name']}"
        return self._remembered(path, lambda: self._require_namespace(path, body))

    def require_queue(self, path: str) -> None:
        """As `check_queue`; a Queue that was looked at a moment ago is not asked for again."""
        self._remembered(path, lambda: self.check_queue(path))

    def check_queue(self, path: str) -> Raw:
        """The Queue, {} for one that is still to be made. Raises EngineRefused when somebody else has it."""
        try:
            found: Raw = self._client.get(path)
        except ApiError as error:
            if error.status != 404:
                raise as_refusal(error) from error
            return {}
        if names.made_by(found) != self._installation:
            raise EngineRefused(
                NAME_TAKEN,
                f"The Queue {found['metadata']['name']} exists and is not ours: it has no label"
                f" {names.INSTALLATION}={self._installation}. Remove it, create {_ELSEWHERE}",
            )
        return found

    def forget(self, prefix: str) -> None:
        """What we saw under this path is not there any more, or not as we saw it."""
        with self._lock:
            self._seen = {path: seen for path, seen in self._seen.items() if not path.startswith(prefix)}

    @contextlib.contextmanager
    def in_use(self, path: str) -> Iterator[None]:
        """Be at work with this object, however long that takes: each call may wait for its answer."""
        with self._lock:
            self._users[path] += 1
        try:
            yield
        finally:
            with self._lock:
                self._used[path] = self._clock()
                self._users[path] -= 1
                if not self._users[path]:
                    del self._users[path]

    def is_in_use(self, path: str) -> bool:
        """Whether somebody here is at work with this object, or was a moment ago and may try again."""
        if path in self._users:
            return True
        used_at = self._used.get(path)
        return used_at is not None and self._clock() - used_at < IN_USE_SECONDS

    def check_namespace(self, found: Raw) -> None:
        """Raise EngineRefused unless the namespace is ours and there to stay."""
        name = found["metadata"]["name"]
        if (theirs := names.made_by(found)) != self._installation:
            whose = f"belongs to another Trainyard ({names.INSTALLATION}={theirs})"
            bare = f"is not ours: it has no label {names.INSTALLATION}={self._installation}"
            raise EngineRefused(
                NAMESPACE_NOT_OURS,
                f"The namespace {name} exists and {whose if theirs else bare}."
                f" {'Create' if theirs else 'Remove it, create'} {_ELSEWHERE}",
            )
        if found["metadata"].get("deletionTimestamp"):
            raise EngineRefused(
                NAMESPACE_NOT_OURS,
                f"The namespace {name} is being deleted; wait until it is gone.",
                is_passing=True,
            )

    def _require_namespace(self, path: str, body: Raw) -> Raw:
        try:
            found: Raw = self._client.get(path)
        except ApiError as error:
            if error.status != 404:
                raise as_refusal(error) from error
            found = self._make_namespace(path, body)
        self.check_namespace(found)
        return found

    def _make_namespace(self, path: str, body: Raw) -> Raw:
        try:
            made: Raw = self._client.create("/api/v1/namespaces", body)
            return made
        except ApiError as error:
            if error.status != 409:
                raise as_refusal(error) from error
        found: Raw = self._client.get(path)
        return found

    def _adopt(self, path: str, body: Raw) -> Raw:
        try:
            found: Raw = self._client.get(path)
        except ApiError as error:
            if error.status == 404:  # gone between the two calls: the caller's next try makes it
                raise EngineUnreachable(f"{path} was there and is gone.") from error
            raise as_refusal(error) from error
        wanted, labels = body["metadata"].get("labels") or {}, found["metadata"].get("labels") or {}
        if any(labels.get(key) != wanted.get(key) for key in IDENTITY):
            raise EngineRefused(NAME_TAKEN, f"{path} exists and is not ours.")
        if _anchor_of(found) and _anchor_of(body) not in ("", _anchor_of(found)):
            raise EngineUnreachable(f"{path} goes with the anchor of an earlier try, which is gone.")
        return found

    def _remembered(self, path: str, make: Callable[[], Raw]) -> Raw:
        now = self._clock()
        with self._lock:
            self._used[path] = now
            if now - self._tidied_at > IN_USE_SECONDS:  # thousands of attempts come and go in a day
                self._tidied_at = now
                self._used = {path: at for path, at in self._used.items() if self.is_in_use(path)}
                self._seen = {path: seen for path, seen in self._seen.items() if path in self._used}
            seen = self._seen.get(path)
        if seen is not None and now - seen[0] < REMEMBERED_SECONDS:
            return seen[1]
        made = make()
        with self._lock:
            self._seen[path] = (self._clock(), made)
        return made


def _anchor_of(raw: Raw) -> str:
    """The uid of the anchor that an object beside a pod goes with. A pod is told by its labels alone: one that goes is
    seen to end."""
    owners = raw["metadata"].get("ownerReferences") or () if raw.get("kind") != "Pod" else ()
    return next((owner["uid"] for owner in owners if owner["kind"] == "ConfigMap"), "")
