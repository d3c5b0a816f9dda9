"""Open the engine of each cluster once per process, for the loop and the gateway."""

import logging
import threading
from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from controlplane.clusters.credentials import CredentialsUnreadable, engine_settings
from controlplane.engines.base import Engine, EngineRefused, EngineUnreachable
from controlplane.engines.registry import open_engine
from controlplane.models import Cluster
from controlplane.models.prepared import prepared

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Opened:
    """An open engine. `opened_with`: the settings and credentials with which it was opened."""

    opened_with: tuple[Any, ...]
    engine: Engine


class EnginePool:
    """The engines of one process, by cluster. Thread-safe."""

    def __init__(self) -> None:
        # Held while an engine is opened, so that no cluster gets two, with twice the threads and
        # watches.
        self._lock = threading.Lock()
        self._opened: dict[int, _Opened] = {}

    def engine_for(self, cluster: Cluster) -> Engine:
        """Return the cluster's engine. It is opened at first use, and again if the cluster's settings or credentials
        have changed. Raise EngineUnreachable if it cannot be opened."""
        # Compared in encrypted form, so that unchanged credentials need not be decrypted.
        given = (cluster.engine, cluster.name, cluster.scheduler, cluster.settings, cluster.credentials)
        wanted = (*given, cluster.has_found("mpi_operator"))
        known = self._opened.get(cluster.pk)
        if known is not None and known.opened_with == wanted:
            return known.engine
        with self._lock:
            known = self._opened.get(cluster.pk)
            if known is None or known.opened_with != wanted:
                self._close(cluster.pk)
                # A copy, because the caller may modify the settings of its object.
                known = self._opened[cluster.pk] = _Opened(deepcopy(wanted), _open(cluster))
            return known.engine

    def close(self, keep: Collection[int] = ()) -> None:
        """Close all engines, except those of the clusters whose primary keys are in `keep`."""
        with self._lock:
            for key in [key for key in self._opened if key not in keep]:
                self._close(key)

    def _close(self, key: int) -> None:
        """Close an engine, if it is open. An error is logged, so that it does not prevent opening the next one."""
        known = self._opened.pop(key, None)
        if known is None:
            return
        try:
            known.engine.close()
        except Exception:
            logger.exception("the engine of cluster %s could not be closed", key)


POOL = EnginePool()


@prepared
def attached_clusters() -> QuerySet[Cluster]:
    """Return the clusters that the loop serves, by primary key. Clusters that are being checked or were refused are
    not served."""
    return Cluster.objects.filter(detached_at=None, state=Cluster.ATTACHED).order_by("pk")


def engine_for(cluster: Cluster) -> Engine:
    """Return the cluster's engine, of this process. Raise EngineUnreachable if it cannot be opened, for example
    because the credentials cannot be decrypted."""
    return POOL.engine_for(cluster)


def close_engines(keep: Collection[int] = ()) -> None:
    """Close all engines of this process, except those of the clusters whose primary keys are in `keep`."""
    POOL.close(keep)


def _open(cluster: Cluster) -> Engine:
    try:
        return open_engine(cluster.engine, engine_settings(cluster), settings.STATE_DIR)
    except (CredentialsUnreadable, EngineRefused, ValueError) as error:
        raise EngineUnreachable(f"Cluster {cluster.name} cannot be opened: {error}") from error
