"""Keep a local copy of the cluster's pods and nodes, updated by watches.

The watches start when they are first needed: a process that only opens shells does not load the whole
cluster.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

from controlplane.engines.base import RUNNING, EngineRefused, EngineUnreachable, PodReport
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.manifests import without
from controlplane.engines.kubernetes.reports import (
    NODE_GONE_SECONDS,
    SILENT_NODE_TAINTS,
    TERMINAL,
    pinned_node,
    pod_report,
    unreadable,
)
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.names import Raw, key_of
from controlplane.kubernetes_api.reflector import Reflector

logger = logging.getLogger(__name__)

# How long after the start of the watches callers wait for the first list.
SYNC_SECONDS = 10.0
# Shorter for callers that also serve other clusters, which must not wait for this one.
SHORT_WAIT_SECONDS = 0.7
# If the last contact is older than this, the cached state may be outdated, so the cluster must answer a probe before it
# is used.
STALE_SECONDS = 15.0
# A reachable cluster answers a probe within this time; an unreachable one delays only one caller once.
ANSWER_SECONDS = 0.5
MOST_WARNED = 1000  # messages
# Servers send a bookmark about every minute, so a watch that receives nothing for longer than this does not work.
SILENCE_SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A snapshot of a cluster: our pods by name, all other pods that hold resources of nodes, and nodes by name."""

    ours: Mapping[str, Raw]
    others: tuple[Raw, ...]
    nodes: Mapping[str, Raw]


class Watching:
    """A cache of the cluster's pods and nodes. Thread-safe. `profile` decides which pods are ours; `on_change` is
    called with the names of our pods that changed."""

    def __init__(
        self, client: Client, profile: ClusterProfile, on_change: Callable[[set[str]], None]
    ) -> None:
        self._profile, self._on_change = profile, on_change
        self._changed = threading.Condition()
        self._changes = self._noticed = 0
        self._absences = Absences()
        # The cheapest request: it needs only the right of system:public-info-viewer, which every login has by
        # default, and reads nothing from etcd.
        self._probe = Probe(lambda: client.get("/version", timeout_seconds=5, tries=1))
        # Uids of pods that we removed: the watch still reports them for a moment, in which they must not be visible.
        self._hidden: set[str] = set()
        # The keys of our pods in the reflector's store, by pod name, so that one is found without a search.
        self._keys: dict[str, str] = {}
        # Names of our pods that changed since the last call of `on_change`.
        self._news: set[str] = set()
        self._pods = Reflector(client, "/api/v1/pods", keep=self._trim_pod, on_change=self._notice)
        self._nodes = Reflector(client, "/api/v1/nodes", keep=_trim_node, on_change=self._notice)

    def look(self, timeout_seconds: float = SYNC_SECONDS) -> Cluster:
        """Return a snapshot of the cluster. Raise EngineUnreachable if the cache is incomplete or outdated.
        `timeout_seconds`: how long after the start of the watches to wait for their first lists."""
        self._require_fresh(timeout_seconds)
        pods, ours, others = self._pods.items(), {}, []
        for raw in pods.values():
            if raw is None:
                continue
            if not self._profile.is_our_pod(raw):
                others.append(raw)
            elif raw["metadata"]["uid"] not in self._hidden and not names.is_unplaced(raw):
                ours[names.pod_name(raw)] = raw
        return Cluster(ours, tuple(others), self._nodes.items())

    def nodes(self) -> Mapping[str, Raw]:
        """Return nodes by name. Raise EngineUnreachable if the cache is incomplete or outdated."""
        self._require_fresh()
        return self._nodes.items()

    def node_of(self, raw: Raw) -> Raw | None:
        """Return the pod's node as last seen, or what `Absences.node` has in its place."""
        return self._absences.node(raw["spec"].get("nodeName", ""), self._nodes.items())

    def has_looked(self) -> bool:
        """Return whether the first list of pods is complete. Starts the watches if necessary; does not wait."""
        self._start()
        return self._pods.wait_synced(0)

    def last_nodes(self) -> Mapping[str, Raw]:
        """Return the last known nodes by name, even if outdated; {} before the first list."""
        return self._nodes.items()

    def pod(self, name: str) -> Raw | None:
        """Return one of our pods, None if there is none. Raise EngineUnreachable if the cache is incomplete or
        outdated."""
        self._require_fresh()
        return self.last_seen(name)

    def last_seen(self, name: str) -> Raw | None:
        """Return the last known state of one of our pods, even if outdated; None if there is none. An MPIJob's pod
        without its final name is found by the key of `names.operated`."""
        raw: Raw | None = self._pods.get(self._keys.get(name, ""))
        return None if raw is None or raw["metadata"]["uid"] in self._hidden else raw

    def observe(self, raw: Raw) -> None:
        """Store a pod as a request of ours returned it, so that it is visible before the watch delivers it."""
        self._pods.observe(raw)

    def hide(self, raw: Raw) -> None:
        """Leave a pod that we removed out of all results, until the watch reports its deletion."""
        with self._changed:
            # Cleaned up only when it is large: leftover uids do no harm, since a uid is never used again.
            if len(self._hidden) > 1000:
                known = {pod["metadata"]["uid"] for pod in self._pods.items().values() if pod}
                self._hidden &= known
                self._keys = {name: key for name, key in self._keys.items() if key in self._pods.items()}
            self._hidden |= {raw["metadata"]["uid"]}

    def wait_for_change(self, timeout_seconds: float) -> bool:
        """Block until something has changed since the last call, by any thread, and return True; False after
        `timeout_seconds`. Starts the watches if necessary."""
        self._start()
        with self._changed:
            has_changed = self._changed.wait_for(lambda: self._changes != self._noticed, timeout_seconds)
            self._noticed = self._changes
            return has_changed

    def notify(self) -> None:
        """End the waits of all callers of `wait_for_change`."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def close(self) -> None:
        self._pods.close()
        self._nodes.close()

    def _start(self) -> None:
        self._nodes.start()
        self._pods.start()

    def _require_fresh(self, timeout_seconds: float = SYNC_SECONDS) -> None:
        self._start()
        for reflector, what in ((self._nodes, "nodes"), (self._pods, "pods")):
            if not reflector.wait_listed(timeout_seconds):
                words = f"The cluster has not listed its {what} yet: {reflector.trouble or 'no answer'}"
                raise EngineUnreachable(words)
            age = reflector.seconds_since_contact()
            if age > STALE_SECONDS and not reflector.trouble and age <= SILENCE_SECONDS:
                # A quiet cluster sends an event only once a minute, so probe whether it is reachable.
                self._probe.require_answer(STALE_SECONDS)
            elif age > STALE_SECONDS:
                # Fixed while the cluster is unreachable, so that the message does not change.
                at = datetime.now(UTC) - timedelta(seconds=age)
                words = f"The cluster last answered at {at:%Y-%m-%d %H:%M:%S} UTC: {reflector.trouble}"
                raise EngineUnreachable(words)

    def _notice(self) -> None:
        self.notify()
        with self._changed:
            news, self._news = self._news, set()
        self._on_change(news)

    def _trim_pod(self, raw: Raw) -> Raw | None:
        """Return what the cache stores of a pod. Of our pods that is all except unused fields, of other pods only the
        resources that they occupy; None for another pod that occupies no resources."""
        if self._profile.is_our_pod(raw):
            raw["metadata"].pop("managedFields", None)
            name = names.operated_by(raw) if names.is_unplaced(raw) else names.pod_name(raw)
            self._keys[name] = key_of(raw["metadata"]["namespace"], raw["metadata"]["name"])
            with self._changed:
                self._news.add(name)
            return raw
        spec, status = raw.get("spec") or {}, raw.get("status") or {}
        node = spec.get("nodeName") or pinned_node(raw)
        if not node or status.get("phase") in TERMINAL:
            return None
        containers, held = ("containers", "initContainers"), ("resources", "restartPolicy")
        return {
            "metadata": {key: raw["metadata"].get(key) for key in ("name", "namespace", "uid")},
            "spec": {"nodeName": node, "overhead": spec.get("overhead")}
            | {
                kind: [{key: one.get(key) for key in held} for one in spec.get(kind) or ()]
                for kind in containers
            },
            "status": {"phase": status.get("phase")},
        }


class Absences:
    """The nodes that the cluster does not list although pods are bound to them, and since when. Thread-safe. `clock`
    returns monotonic seconds.

    A deleted node may register again within moments with its containers still running, so only a node that stays
    absent counts as gone. After a restart of this process an absence begins at its first observation.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._since: dict[str, float] = {}

    def node(self, name: str, nodes: Mapping[str, Raw]) -> Raw | None:
        """Return the node of this name among all `nodes`; in place of one that has been missing for at most
        NODE_GONE_SECONDS, a node that does not respond; else None."""
        with self._lock:
            if name in nodes:
                self._since.pop(name, None)
                return nodes[name]
            absent_seconds = self._clock() - self._since.setdefault(name, self._clock())
        is_young = name and absent_seconds <= NODE_GONE_SECONDS
        return {"spec": {"taints": [{"key": SILENT_NODE_TAINTS[0]}]}} if is_young else None


class Probe:
    """Calls `ask`, which raises if the cluster does not answer, on a thread of its own; one call at a time.
    Thread-safe."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask, self._lock = ask, threading.Lock()
        self._asking: threading.Thread | None = None
        self._answered_at, self._trouble = float("-inf"), ""

    def require_answer(self, fresh_seconds: float) -> None:
        """Raise EngineUnreachable unless the last successful probe is at most `fresh_seconds` old. Otherwise start a
        new probe; wait for it, at most ANSWER_SECONDS, only if the previous one succeeded."""
        if self._is_fresh(fresh_seconds):
            return
        with self._lock:
            # Wait for an unreachable cluster only once, because the loop has other clusters to serve.
            wait_seconds = 0.0 if self._trouble else ANSWER_SECONDS
            if self._asking is None or not self._asking.is_alive():
                self._asking = threading.Thread(target=self._run, name="probe", daemon=True)
                self._asking.start()
            asking = self._asking
        asking.join(wait_seconds)
        with self._lock:
            if not self._is_fresh(fresh_seconds):
                self._trouble = self._trouble or "The cluster does not answer."
                raise EngineUnreachable(self._trouble)

    def _is_fresh(self, seconds: float) -> bool:
        return time.monotonic() - self._answered_at <= seconds

    def _run(self) -> None:
        # Remains if `ask` raises an unexpected exception, which ends only this thread.
        trouble = "It could not be checked."
        try:
            self._ask()
            trouble, self._answered_at = "", time.monotonic()
        except (ApiError, EngineUnreachable, EngineRefused) as error:
            trouble = str(error)
        finally:
            with self._lock:
                self._trouble = trouble


# By the pod's uid: the pod and its node, as the store had them, and the report, which is valid while both are the same
# objects.
Known: TypeAlias = dict[str, tuple[Raw, Raw, PodReport]]


class KnownReports:
    """A cache of pod reports. A report is rebuilt only if its pod or its node may have changed. `node_of` returns the
    pod's node, as for `reports.pod_report`; `now`: by the API server's clock."""

    def __init__(self, node_of: Callable[[Raw], Raw | None]) -> None:
        self._node_of = node_of
        self._known: Known = {}
        # Once per message, although a pod that cannot be read is read every second.
        self._warn = lru_cache(MOST_WARNED)(logger.warning)

    def of(self, pods: Iterable[Raw], now: datetime) -> tuple[PodReport, ...]:
        """Return the reports of these pods in their order, and drop all others from the cache."""
        earlier, self._known = self._known, {}
        return tuple(self._report(pod, earlier, now) for pod in pods)

    def one(self, pod: Raw, now: datetime) -> PodReport:
        """Return the report of one pod. The cached reports of other pods stay."""
        return self._report(pod, self._known, now)

    def _report(self, pod: Raw, known: Known, now: datetime) -> PodReport:
        uid, node = pod["metadata"]["uid"], self._node_of(pod)
        known_pod, known_node, report = known.get(uid, (None, None, None))
        # The store has a new object after every change, so identity is a sufficient and cheap comparison.
        if report is None or known_pod is not pod or known_node is not node:
            try:
                report = pod_report(pod, node, now)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # One odd pod must not hide the others.
                report = unreadable(pod, error)
                self._warn(report.message)
        # Reports of pods without a node, and of starting pods, change with time alone.
        if node is not None and (report.state == RUNNING or report.is_proven_gone):
            self._known[uid] = (pod, node, report)
        return report


def _trim_node(raw: Raw) -> Raw:
    """Return a node without unused fields, and without those that only renew a heartbeat: with 500 nodes dozens of
    these change per second."""
    status = without(raw.get("status", {}), "images")
    status["conditions"] = [without(one, "lastHeartbeatTime") for one in status.get("conditions") or ()]
    return {**raw, "metadata": without(raw["metadata"], "managedFields", "resourceVersion"), "status": status}
