"""A local store of one resource: a paged list, then a watch, and a new list after any gap.

Versions are compared as integers. Kubernetes guarantees the order of one resource's resourceVersions from 1.35
on; before that they were etcd's revision, one counter per cluster, which has the same order. Events whose
version is not a number are applied in order of arrival.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import orjson

from controlplane.kubernetes_api.client import Client, Stream, backoff_seconds
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.names import key_of
from controlplane.remote_errors import Refused, Unreachable

log = logging.getLogger(__name__)

PAGE = 500  # objects
# A new list corrects what a watch may have missed without an error.
RELIST_SECONDS = 600.0
# The server ends a watch at a random time between these, so that many watches do not begin anew together.
WATCH_SECONDS = (300.0, 600.0)
# Servers send a bookmark about every minute, so a longer silence means a connection that died unnoticed.
SILENCE_SECONDS = 130.0
BACKOFF_SECONDS = (0.8, 30.0)
_LIST_SECONDS = 60.0
_BYE_SECONDS = 5.0


class Reflector:
    """Keeps copies of the objects that a list of `path` with `query` returns, by "namespace/name" (or "name"). Runs
    one thread between `start` and `close`. Thread-safe.

    `keep` receives the raw object and returns what to store of it (None: all): 10,000 untrimmed pods take a quarter
    of a gigabyte. `on_change` is called on the reflector's thread, or that of `observe`, after the store changed. The
    last four settings are for tests.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        query: Mapping[str, str] = {},
        keep: Callable[[dict[str, Any]], Any] | None = None,
        on_change: Callable[[], None] | None = None,
        relist_seconds: float = RELIST_SECONDS,
        watch_seconds: tuple[float, float] = WATCH_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        backoff_bounds: tuple[float, float] = BACKOFF_SECONDS,
    ) -> None:
        self._client, self._path, self._query = client, path, dict(query)
        self._on_change = on_change or (lambda: None)
        self._relist_seconds, self._watch_seconds = relist_seconds, watch_seconds
        self._silence_seconds, self._backoff_bounds = silence_seconds, backoff_bounds
        self._model = Model(keep or (lambda obj: obj))
        self._synced, self._closing, self._has_listed = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self._started_at: float | None = None
        self._contact_at = float("-inf")
        self._failures = 0
        # The version from which a watch continues; "" if a new list is needed.
        self._version = ""
        self._stream: Stream | None = None
        self._stream_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"reflector {path}", daemon=True)
        # Why the last list or watch failed; "" after a success.
        self.trouble = ""

    def start(self) -> float:
        """Start the thread unless it was started before. Return when it was started, by time.monotonic()."""
        with self._stream_lock:
            if self._started_at is None:
                self._started_at = time.monotonic()
                self._thread.start()
            return self._started_at

    def close(self) -> None:
        """End the thread; waits at most _BYE_SECONDS for it. The store remains readable. Cannot be started again."""
        self._closing.set()
        with self._stream_lock:
            if self._stream is not None:
                self._stream.abort()
        if self._thread.is_alive():
            self._thread.join(_BYE_SECONDS)

    def wait_synced(self, timeout_seconds: float) -> bool:
        """Block until the first list is complete, at most `timeout_seconds`. Return whether it is."""
        return self._synced.wait(timeout_seconds)

    def wait_listed(self, seconds: float) -> bool:
        """Block until the first list is complete or its first try has failed, at most until `seconds` after `start`.
        Return whether it is complete."""
        self._has_listed.wait(max(0.0, self.start() + seconds - time.monotonic()))
        return self._synced.is_set()

    def items(self) -> Mapping[str, Any]:
        """Return all stored objects by key, as an immutable snapshot."""
        return self._model.items()

    def get(self, key: str) -> Any:
        """Return the stored object with this key, None if absent. Copies nothing, unlike `items`."""
        return self._model.get(key)

    def observe(self, obj: dict[str, Any]) -> None:
        """Store an object that a request returned, so that the caller reads its own write; ignored if the store has a
        newer version, and for a Status. The object must match `query`."""
        if self._model.observe(obj):
            self._on_change()

    def seconds_since_contact(self) -> float:
        """Return the seconds since the server last sent something, up to about 65 on a quiet cluster; inf before the
        first list."""
        return time.monotonic() - self._contact_at

    def _run(self) -> None:
        list_at = float("-inf")
        while not self._closing.is_set():
            try:
                if not self._version or time.monotonic() - list_at >= self._relist_seconds:
                    self._list()
                    list_at = time.monotonic()
                self._watch(list_at + self._relist_seconds)
            except ApiError as error:
                # 410 means that events were missed; after any other refusal it is unknown whether some were.
                self._version = ""
                self._fail(error)
            except (Unreachable, Refused) as error:
                # The version is kept: the next watch continues after the last event.
                self._fail(error)
            except Exception as error:
                if self._closing.is_set():
                    # Aborting a TLS stream may raise any exception.
                    return
                self._version = ""
                log.exception("The reflector of %s cannot read what the server sent.", self._path)
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._closing.is_set():
            return
        self._failures += 1
        self.trouble = str(error)
        self._has_listed.set()
        log.info("%s: %s", self._path, error)
        self._closing.wait(backoff_seconds(self._failures, *self._backoff_bounds))

    def _list(self) -> None:
        """Replace the store's content with a new list. Raises what `Client.get` raises; the store is then unchanged."""
        self._model.begin_list()
        query = {**self._query, "limit": str(PAGE)}
        found: list[Entry] = []
        while True:
            # The client must not retry, because this thread has its own back-off.
            page = self._client.get(self._path, query, timeout_seconds=_LIST_SECONDS, tries=1)
            found += [self._model.entry(obj) for obj in page.get("items") or ()]
            more = page["metadata"].get("continue")
            if not more or self._closing.is_set():
                break
            query["continue"] = more
        self._version = str(page["metadata"]["resourceVersion"])
        self._touch()
        has_changed = self._model.end_list(found, number_of(self._version))
        self._synced.set()
        self._has_listed.set()
        if has_changed:
            self._on_change()

    def _watch(self, until: float) -> None:
        """Apply events until the server ends the watch, at the latest at `until` (time.monotonic()). Raise
        Unreachable if that happens within a second, so that the back-off applies."""
        began = time.monotonic()
        # Random, so that the watches of all resources do not end at the same moment.
        seconds = max(1, round(min(random.uniform(*self._watch_seconds), until - began)))
        query = {
            **self._query, "watch": "1", "allowWatchBookmarks": "true",
            "resourceVersion": self._version, "timeoutSeconds": str(seconds),
        }  # fmt: skip
        silence = min(seconds + 5.0, self._silence_seconds)
        with self._client.stream(self._path, query, read_timeout_seconds=silence) as stream:
            self._hold(stream)
            self._touch()
            try:
                for line in stream:
                    self._take(line)
            finally:
                self._hold(None)
        # An error, so that the back-off applies; otherwise this thread would send watches without a pause.
        if time.monotonic() - began < 1:
            raise Unreachable("The server ended a watch at once.")

    def _hold(self, stream: Stream | None) -> None:
        """Set the stream that `close` must abort; None when it has ended."""
        with self._stream_lock:
            self._stream = stream
            # `close` may have been called while the stream was being opened.
            if stream is not None and self._closing.is_set():
                stream.abort()

    def _take(self, line: bytes) -> None:
        """Apply one event, a line of JSON. Raise ApiError if the event reports an error."""
        event = orjson.loads(line)
        obj = event["object"]
        if event["type"] == "ERROR":
            raise ApiError(int(obj.get("code") or 500), orjson.dumps(obj))
        self._touch()
        # A bookmark contains no object, only the version at which the next watch may begin.
        if event["type"] != "BOOKMARK" and self._model.take(obj, is_gone=event["type"] == "DELETED"):
            self._on_change()
        self._version = str(obj["metadata"].get("resourceVersion") or self._version)

    def _touch(self) -> None:
        self._contact_at = time.monotonic()
        self._failures, self.trouble = 0, ""


# Key, version, stored object.
Entry: TypeAlias = tuple[str, int | None, Any]


class Model:
    """The store: by key the newest version seen, with the object or its deletion.

    Of two states of an object the one with the larger version wins, whatever their source and order. A list contains
    everything up to its own version; newer states from requests made meanwhile are applied to it again.
    """

    def __init__(self, keep: Callable[[dict[str, Any]], Any]) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._items: dict[str, Any] = {}
        # Also contains the objects deleted since the last list, so that an older state does not bring one back.
        self._versions: dict[str, int] = {}
        # The version of the last list.
        self._listed = 0
        # The objects that requests returned since the last list began, because that list may be older than they are.
        self._observed: dict[str, Entry] = {}
        self._shown: Mapping[str, Any] | None = None

    def items(self) -> Mapping[str, Any]:
        with self._lock:
            if self._shown is None:
                self._shown = MappingProxyType(dict(self._items))
            return self._shown

    def get(self, key: str) -> Any:
        with self._lock:
            return self._items.get(key)

    def entry(self, obj: dict[str, Any]) -> Entry:
        metadata = obj["metadata"]
        key = key_of(metadata.get("namespace") or "", metadata["name"])
        return key, number_of(metadata.get("resourceVersion")), self._keep(obj)

    def take(self, obj: dict[str, Any], *, is_gone: bool) -> bool:
        """Apply a watch event; `is_gone`: the object was deleted. Return whether the store changed."""
        entry = self.entry(obj)
        with self._lock:
            return self._put(entry, is_gone=is_gone)

    def observe(self, obj: dict[str, Any]) -> bool:
        """Apply an object that a request returned; one without a name or a numeric version is ignored. Return whether
        the store changed."""
        if "resourceVersion" not in obj.get("metadata", {}) or not obj["metadata"].get("name"):
            return False
        entry = self.entry(obj)
        # Without a version it is unknown whether the store has a newer state.
        if entry[1] is None:
            return False
        with self._lock:
            self._observed[entry[0]] = max(
                entry, self._observed.get(entry[0], entry), key=lambda e: e[1] or 0
            )
            return self._put(entry)

    def begin_list(self) -> None:
        with self._lock:
            self._observed.clear()

    def end_list(self, found: Sequence[Entry], version: int | None) -> bool:
        """Replace the store's content with a list of this `version` (None: not a number). Newer states that requests
        returned since `begin_list` are kept. Return whether anything changed."""
        with self._lock:
            before, before_versions = self._items, self._versions
            self._items = {key: kept for key, _, kept in found}
            self._versions = {key: number for key, number, _ in found if number is not None}
            self._listed, self._shown = version or 0, None
            for entry in self._observed.values():
                self._put(entry)
            self._observed.clear()
            return self._versions != before_versions or self._items.keys() != before.keys()

    def _put(self, entry: Entry, *, is_gone: bool = False) -> bool:
        key, number, kept = entry
        if number is not None:
            if number <= max(self._listed, self._versions.get(key, 0)):
                return False
            self._versions[key] = number
        if is_gone:
            self._items.pop(key, None)
        elif key in self._items and self._items[key] == kept:
            # The object has a new version, but its stored part is the same.
            return False
        else:
            self._items[key] = kept
        self._shown = None
        return True


def number_of(version: Any) -> int | None:
    """Return a resourceVersion as an integer; None if it is not a decimal number."""
    return int(version) if isinstance(version, str) and version.isascii() and version.isdecimal() else None
