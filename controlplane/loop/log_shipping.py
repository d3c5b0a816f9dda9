"""Once a second, list the pods whose logs must be copied, for engines that do not write the log store themselves.

A process keeps the lease for as long as it lives, because the engine goes on copying between two lists.
"""

import logging
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.db.models import Q

from controlplane.engines.base import WRITES_LOG_STORE, EngineUnreachable, parts_of
from controlplane.logstore.reader import log_path, tail
from controlplane.loop.claims import claim, release, renew
from controlplane.loop.engine_pool import attached_clusters, engine_for
from controlplane.models import Cluster
from jobs.models import Pod

logger = logging.getLogger(__name__)

LEASE = "logs"
LEASE_SECONDS = 10
# A pod gone for longer than this whose log is still incomplete stays without the rest.
LOOK_BACK_SECONDS = 600
NOT_COPIED = "logs of cluster %s are not copied; the next pass tries again"


class LogKeeper:
    """Makes engines copy logs while this process holds the lease. If it dies, another process takes over."""

    def __init__(self) -> None:
        self._token: str | None = None
        self._complete: set[str] = set()

    def look(self, now: datetime) -> bool:
        """Pass every engine that does not write the log store itself the list of logs to copy. Return False, with
        nothing done, if there is one and another process holds the lease."""
        clusters = [cluster for cluster in attached_clusters() if _is_copied(cluster)]
        if not clusters:
            self.stop()
            return True
        if not self._holds():
            return False
        released: set[str] = set()
        for cluster in clusters:
            _pass_list(cluster, partial(self._wanted, cluster, now, released))
        self._complete &= released
        return True

    def stop(self) -> None:
        """Stop copying and release the lease, so that another process can take over at once."""
        if self._token is not None:
            self._let_go()
            release(LEASE, self._token, is_complete=True)
            self._token = None

    def _holds(self) -> bool:
        if self._token is not None and renew(LEASE, self._token, LEASE_SECONDS):
            return True
        if self._token is not None:
            # The lease expired before it was renewed, so another process may be copying now.
            self._let_go()
        self._token = claim(LEASE, LEASE_SECONDS)
        return self._token is not None

    def _let_go(self) -> None:
        for cluster in attached_clusters():
            _pass_list(cluster, dict)

    def _wanted(self, cluster: Cluster, now: datetime, released: set[str]) -> Mapping[str, str]:
        """Return the log file of each pod that may still write, or whose log is incomplete, by pod name. Adds to
        `released` the ended pods, whose logs may be complete now."""
        recent = Q(released_at__gte=now - timedelta(seconds=LOOK_BACK_SECONDS))
        pods = Pod.objects.filter(Q(released_at=None) | recent, node__cluster=cluster)
        wanted = {}
        for name, released_at, started_at in pods.values_list("name", "released_at", "started_at"):
            if (parts := parts_of(name)) is None:
                # Not a name that we assigned, so it has no log file.
                continue
            path = str(log_path(settings.LOG_DIR, *parts))
            if released_at is not None:
                released.add(name)
                has_log = started_at is not None or os.path.exists(path)
                if not has_log or self._is_complete(name, path):
                    continue
            wanted[name] = path
        return wanted

    def _is_complete(self, name: str, path: str) -> bool:
        if name not in self._complete and tail(path, 1).complete:
            self._complete.add(name)
        return name in self._complete


def _is_copied(cluster: Cluster) -> bool:
    """Return whether the loop passes the cluster's engine the list of logs to copy."""
    try:
        return WRITES_LOG_STORE not in engine_for(cluster).capabilities
    except EngineUnreachable:
        return False
    except Exception:
        logger.exception(NOT_COPIED, cluster.name)
        return False


def _pass_list(cluster: Cluster, wanted: Callable[[], Mapping[str, str]]) -> None:
    """Pass an engine the list of logs to copy, unless it writes the log store itself. `wanted` returns log files by
    pod name. An error is logged and affects only this engine."""
    try:
        engine = engine_for(cluster)
        if WRITES_LOG_STORE not in engine.capabilities:
            engine.copy_logs(wanted())
    except EngineUnreachable:
        # Not logged here, because the loop reports an unreachable engine.
        return
    except Exception:
        logger.exception(NOT_COPIED, cluster.name)
