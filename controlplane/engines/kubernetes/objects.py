"""Create objects once: an object that an earlier lost request or another process has created is found and adopted."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from controlplane.engines.base import NAME_TAKEN, NAMESPACE_NOT_OURS, EngineRefused, EngineUnreachable
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.api_errors import refusal_of, refusals
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.names import Raw

# How long an object that was seen is assumed to exist, which saves a request for each pod that needs it.
REMEMBERED_SECONDS = 30.0
# An object is not swept until this long after its last use.
IN_USE_SECONDS = 30.0
# Labels that identify an object's owner; other values mean another owner.
IDENTITY = (names.INSTALLATION, names.PROJECT, names.JOB_ID, names.ATTEMPT, names.RANK)
_ELSEWHERE = (
    "the project under another name, or delete the cluster's projects or move them away, choose another"
    " namespace_prefix, and create them again."
)


class Objects:
    """Creates and checks objects in one cluster for one installation. Thread-safe. `clock` returns monotonic
    seconds."""

    def __init__(
        self, client: Client, installation: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._installation, self._clock = client, installation, clock
        self._seen: dict[str, tuple[float, Raw]] = {}
        # By path: when the object was last requested, or its last use ended; a sweep spares what is in use.
        self._used: dict[str, float] = {}
        # By path: how many blocks of `in_use` are running.
        self._users = Counter[str]()
        self._tidied_at = clock()
        self._lock = threading.Lock()

    def read(self, path: str, **options: Any) -> Raw | None:
        """Return the object at `path`, None if there is none. `options`: those of `Client.get`. Raise EngineRefused
        if the server refuses the request."""
        with refusals():
            return self._client.find(path, **options)

    def make(self, body: Raw) -> Raw:
        """Create an object, or find it if an earlier request created it; return it as stored. Of an existing Secret
        return `body`, because we may not read secrets. Raise EngineRefused if the server refuses it or the name
        belongs to others, EngineUnreachable if a retry can succeed."""
        try:
            created: Raw = self._client.create(_list_of(body), body)
            return created
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise refusal_of(error, body["kind"]) from error
        # We may not read secrets, and no other client has a reason to use the name of an attempt's secret.
        if body["kind"] == "Secret":
            return body
        return self._adopt(names.path_of(body), body)

    def make_remembered(self, body: Raw) -> Raw:
        """Call `make`, or return its result if that is less than REMEMBERED_SECONDS old."""
        return self._remembered(names.path_of(body), lambda: self.make(body))

    def require_namespace(self, body: Raw) -> None:
        """Create the namespace if it is missing; checked at most every REMEMBERED_SECONDS. Raise EngineRefused if it
        is not ours or is being deleted."""
        self._remembered(names.path_of(body), lambda: self._require_namespace(body))

    def require_queue(self, path: str) -> None:
        """Raise EngineRefused if the Queue is not ours; checked at most every REMEMBERED_SECONDS."""
        self._remembered(path, lambda: self.check_queue(path))

    def check_queue(self, path: str) -> Raw:
        """Return the Queue at `path`, {} if it does not exist. Raise EngineRefused if it is not ours."""
        if (found := self.read(path)) is not None:
            self._require_ours("Queue", found, NAME_TAKEN)
        return found or {}

    def remove(self, path: str, project: str = "") -> None:
        """Delete the object at `path` if it is this installation's and has the label of this project, "" for none.
        Raise EngineRefused if the server refuses a request."""
        found = self.read(path)
        if found is None or names.made_by(found) != self._installation:
            return
        if found["metadata"]["labels"].get(names.PROJECT, "") == project:
            with refusals():
                self._client.delete(path, uid=found["metadata"]["uid"])
            self.forget(path)

    def forget(self, prefix: str) -> None:
        """Forget that objects whose paths begin with `prefix` exist, because they were removed or changed."""
        with self._lock:
            self._seen = {path: seen for path, seen in self._seen.items() if not path.startswith(prefix)}

    @contextlib.contextmanager
    def in_use(self, path: str) -> Iterator[None]:
        """Context manager during which `is_in_use` is True for the object, so that it is not swept."""
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
        """Return whether this process uses the object, or used it at most IN_USE_SECONDS ago and may retry."""
        if path in self._users:
            return True
        used_at = self._used.get(path)
        return used_at is not None and self._clock() - used_at < IN_USE_SECONDS

    def check_namespace(self, found: Raw) -> None:
        """Raise EngineRefused unless the namespace `found` is ours and not being deleted."""
        self._require_ours("namespace", found, NAMESPACE_NOT_OURS)
        if found["metadata"].get("deletionTimestamp"):
            words = f"The namespace {found['metadata']['name']} is being deleted; wait until it is gone."
            raise EngineRefused(NAMESPACE_NOT_OURS, words, is_passing=True)

    def _require_ours(self, kind: str, found: Raw, code: str) -> None:
        if (theirs := names.made_by(found)) == self._installation:
            return
        whose = f"belongs to another Trainyard ({names.INSTALLATION}={theirs}). Create"
        bare = f"is not Trainyard's: it has no label {names.INSTALLATION}={self._installation}. Remove it, create"
        words = f"The {kind} {found['metadata']['name']} exists and {whose if theirs else bare} {_ELSEWHERE}"
        raise EngineRefused(code, words)

    def _require_namespace(self, body: Raw) -> Raw:
        path = names.path_of(body)
        found = self.read(path)
        if found is None:
            # A 409 means that another process created it first, so nothing is left to do.
            with refusals(409):
                found = self._client.create(_list_of(body), body)
        found = found or self._read_made(path)
        self.check_namespace(found)
        return found

    def _adopt(self, path: str, body: Raw) -> Raw:
        found = self._read_made(path)
        wanted, labels = body["metadata"].get("labels") or {}, found["metadata"].get("labels") or {}
        if any(labels.get(key) != wanted.get(key) for key in IDENTITY):
            raise EngineRefused(NAME_TAKEN, f"{path} exists and is not Trainyard's.")
        # The cluster's garbage collector will delete it together with its old anchor, although the new pod needs
        # it.
        if _anchor_of(found) and _anchor_of(body) not in ("", _anchor_of(found)):
            raise EngineUnreachable(f"{path} goes with the anchor of an earlier try, which is gone.")
        return found

    def _read_made(self, path: str) -> Raw:
        """Return an object that exists according to the server's last response. Raise EngineUnreachable if it has
        disappeared since, so that the caller repeats its try."""
        found = self.read(path)
        if found is None:
            raise EngineUnreachable(f"{path} was there and is gone.")
        return found

    def _remembered(self, path: str, make: Callable[[], Raw]) -> Raw:
        now = self._clock()
        with self._lock:
            self._used[path] = now
            # The number of entries is bounded, because thousands of attempts come and go in a day.
            if now - self._tidied_at > IN_USE_SECONDS:
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


def _list_of(body: Raw) -> str:
    return names.list_path(body["kind"], body["metadata"].get("namespace", ""))


def _anchor_of(raw: Raw) -> str:
    """Return the uid of the anchor that owns an object, "" if none does. Always "" for a pod: it is identified by its
    labels, and is adopted even while it is deleted with its anchor, so that its end is observed."""
    owners = raw["metadata"].get("ownerReferences") or () if raw.get("kind") != "Pod" else ()
    return next((owner["uid"] for owner in owners if owner["kind"] == "ConfigMap"), "")
