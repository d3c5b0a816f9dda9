"""What the cluster has, as this process sees it: pods and nodes, kept up to date by watches.

The watches start when they are first needed: a process that only opens shells has no use for the whole cluster.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from controlplane.engines.base import RUNNING, EngineUnreachable, PodReport
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.liveness import Probe
from controlplane.engines.kubernetes.missing_nodes import Absences
from controlplane.engines.kubernetes.reports import TERMINAL, pinned_node, pod_report, unreadable
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.names import key_of
from controlplane.kubernetes_api.reflector import Reflector

logger = logging.getLogger(__name__)

SYNC_SECONDS = 10.0  # after its start, until which callers wait for the first list
GLANCE_SECONDS = 0.7  # the same for callers that have other clusters to see to
STALE_SECONDS = 15.0  # older than that, what we saw may not be what is
MOST_WARNED = 1000  # pods
SILENCE_SECONDS = 150.0  # a watch that is alive says something more often

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cluster:
    """One look at everything: our pods by name, all pods that hold something on nodes, and nodes by name; `hosts` are
    the nodes and those that have only just gone."""

    ours: Mapping[str, Raw]
    others: tuple[Raw, ...]
    nodes: Mapping[str, Raw]
    hosts: Mapping[str, Raw]


class Watching:
    """Thread-safe. `profile` tells which pods are ours; `on_change` is told which of them have changed."""

    def __init__(
        self, client: Client, profile: ClusterProfile, on_change: Callable[[set[str]], None]
    ) -> None:
        self._client, self._profile, self._on_change = client, profile, on_change
        self._changed = threading.Condition()
        self._changes = self._heard = 0
        self._absences = Absences()
        self._starting = threading.Lock()
        self._is_started = False
        self._started_at = 0.0
        self._probe = Probe(lambda: client.get("/version", timeout_seconds=5, tries=1))
        self._hidden: set[str] = set()  # uids of pods that we removed, until the watch says so
        self._keys: dict[str, str] = {}  # of our pods, by name
        self._news: set[str] = set()  # names of our pods that were heard of since the last notice
        self._pods = Reflector(client, "/api/v1/pods", keep=self._trim_pod, on_change=self._notice)
        self._nodes = Reflector(client, "/api/v1/nodes", keep=_trim_node, on_change=self._notice)

    def look(self, patience_seconds: float = SYNC_SECONDS) -> Cluster:
        """What there is now. Raises EngineUnreachable when that is not known, or was known too long ago.
        `patience_seconds`: after the start of the watches, until which it waits for them to know."""
        self._require_fresh(patience_seconds)
        pods, ours, others = self._pods.items(), {}, []
        for raw in pods.values():
            if raw is None:
                continue
            if not self._profile.is_our_pod(raw):
                others.append(raw)
            elif raw["metadata"]["uid"] not in self._hidden and not names.is_unplaced(raw):
                ours[names.pod_name(raw)] = raw
        nodes = self._nodes.items()
        hosts = self._absences.hosts(nodes, (raw["spec"].get("nodeName", "") for raw in ours.values()))
        return Cluster(ours, tuple(others), nodes, hosts)

    def nodes(self) -> Mapping[str, Raw]:
        """Nodes by name. Raises EngineUnreachable."""
        self._require_fresh()
        return self._nodes.items()

    def host_of(self, raw: Raw) -> Mapping[str, Raw]:
        """The node of a pod by its name, as in `look`; nothing when it is gone."""
        name = raw["spec"].get("nodeName", "")
        hosts = self._absences.hosts(self._nodes.items(), (name,))
        return {name: hosts[name]} if name in hosts else {}

    def has_looked(self) -> bool:
        """Whether the pods that there are were seen once; a first call begins to look."""
        self._start()
        return self._pods.wait_synced(0)

    def last_nodes(self) -> Mapping[str, Raw]:
        """Nodes by name as we last saw them, however long ago."""
        return self._nodes.items()

    def pod(self, name: str) -> Raw | None:
        """One of our pods. Raises EngineUnreachable."""
        self._require_fresh()
        return self.last_seen(name)

    def last_seen(self, name: str) -> Raw | None:
        """One of our pods as we last saw it, however long ago; also one that is unplaced, by `names.operated`."""
        raw: Raw | None = self._pods.get(self._keys.get(name, ""))
        return None if raw is None or raw["metadata"]["uid"] in self._hidden else raw

    def observe(self, raw: Raw) -> None:
        """Take over what a call of ours answered, before the watch tells it."""
        self._pods.observe(raw)

    def hide(self, raw: Raw) -> None:
        """This pod was removed by us; the watch will say so later."""
        with self._changed:
            if len(self._hidden) > 1000:
                known = {pod["metadata"]["uid"] for pod in self._pods.items().values() if pod}
                self._hidden &= known
                self._keys = {name: key for name, key in self._keys.items() if key in self._pods.items()}
            self._hidden |= {raw["metadata"]["uid"]}

    def wait_for_change(self, timeout_seconds: float) -> bool:
        """Block until something changed since the last call."""
        self._start()
        with self._changed:
            has_changed = self._changed.wait_for(lambda: self._changes != self._heard, timeout_seconds)
            self._heard = self._changes
            return has_changed

    def close(self) -> None:
        if self._is_started:
            self._pods.close()
            self._nodes.close()

    def _start(self) -> None:
        with self._starting:
            if not self._is_started:
                self._is_started, self._started_at = True, time.monotonic()
                self._nodes.start()
                self._pods.start()

    def _require_fresh(self, patience_seconds: float = SYNC_SECONDS) -> None:
        self._start()
        until = self._started_at + patience_seconds
        for reflector, what in ((self._nodes, "nodes"), (self._pods, "pods")):
            if not reflector.wait_told(max(0.0, until - time.monotonic())):
                raise EngineUnreachable(
                    f"The cluster has not told its {what} yet: {reflector.trouble or 'no answer'}"
                )
            age = reflector.seconds_since_contact()
            if age > STALE_SECONDS and (reflector.trouble or age > SILENCE_SECONDS):
                heard_at = datetime.now(UTC) - timedelta(seconds=age)  # kept for as long as it is away
                words = (
                    f"The cluster was last heard of at {heard_at:%Y-%m-%d %H:%M:%S} UTC: {reflector.trouble}"
                )
                raise EngineUnreachable(words)
            if age > STALE_SECONDS:
                # a quiet cluster says something once a minute only: ask whether it is there
                self._probe.require_answer(STALE_SECONDS)

    def _notice(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()
            news, self._news = self._news, set()
        self._on_change(news)

    def _trim_pod(self, raw: Raw) -> Raw | None:
        """Our pods without the fields that nobody reads; of others' pods what they hold, None where that is nothing."""
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
        containers = ("containers", "initContainers")
        return {
            "metadata": {key: raw["metadata"].get(key) for key in ("name", "namespace", "uid")},
            "spec": {"nodeName": node, "overhead": spec.get("overhead")}
            | {kind: [_held(one) for one in spec.get(kind) or ()] for kind in containers},
            "status": {"phase": status.get("phase")},
        }


class KnownReports:
    """Reports of pods, made anew only for those that have changed: most of ten thousand have not since a second ago."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Raw, Raw, PodReport]] = {}
        self._unreadable: dict[str, str] = {}  # uid -> the trouble that was logged

    def read(self, pod: Raw, nodes: Mapping[str, Raw], now: datetime) -> PodReport:
        """The report of one pod, made anew. What no one can read is told of that pod, and stops no other."""
        try:
            return pod_report(pod, nodes, now)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            report = unreadable(pod, error)
            self._warn(pod["metadata"]["uid"], report.message)
            return report

    def last(self, pod: Raw, nodes: Mapping[str, Raw], now: datetime) -> PodReport:
        """The report of one pod, made anew only if it may be another."""
        return self._one(pod, self._known.get(pod["metadata"]["uid"]), nodes, now)

    def _warn(self, uid: str, trouble: str) -> None:
        """Once, though it is looked at every second."""
        if self._unreadable.get(uid) != trouble:
            if len(self._unreadable) >= MOST_WARNED:
                self._unreadable.clear()
            self._unreadable[uid] = trouble
            logger.warning(trouble)

    def of(self, pods: Iterable[Raw], nodes: Mapping[str, Raw], now: datetime) -> tuple[PodReport, ...]:
        """The reports of these pods and no others. `nodes` and `now` as for `reports.pod_report`."""
        earlier, self._known = self._known, {}
        return tuple(self._one(pod, earlier.get(pod["metadata"]["uid"]), nodes, now) for pod in pods)

    def _one(
        self, pod: Raw, known: tuple[Raw, Raw, PodReport] | None, nodes: Mapping[str, Raw], now: datetime
    ) -> PodReport:
        node = nodes.get(pod["spec"].get("nodeName", ""))
        if known is not None and known[0] is pod and known[1] is node:
            report = known[2]
        else:
            report = self.read(pod, nodes, now)
        # what has no node, or still starts, changes with time alone
        if node is not None and (report.state == RUNNING or report.is_proven_gone):
            self._known[pod["metadata"]["uid"]] = (pod, node, report)
        return report


def _held(container: Raw) -> Raw:
    return {"resources": container.get("resources") or {}, "restartPolicy": container.get("restartPolicy")}


def _trim_node(raw: Raw) -> Raw:
    """Without what nobody reads. What only says that the node is still there goes too: then a heartbeat, of which five
    hundred nodes send dozens a second, is no news."""
    status = {**raw.get("status", {})}
    status.pop("images", None)
    status["conditions"] = [_without(one, "lastHeartbeatTime") for one in status.get("conditions") or ()]
    return {
        **raw,
        "metadata": _without(raw["metadata"], "managedFields", "resourceVersion"),
        "status": status,
    }


def _without(raw: Raw, *fields: str) -> Raw:
    return {key: value for key, value in raw.items() if key not in fields}
