"""Open the engine of each cluster once per process, for the loop and the gateway."""

import logging
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from django.conf import settings

from controlplane.clusters.credentials import CredentialsUnreadable, engine_settings
from controlplane.engines.base import Engine, EngineRefused, EngineUnreachable
from controlplane.engines.registry import open_engine
from controlplane.models import Cluster

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Opened:
    """An engine and the settings that it was opened with."""

    words: str
    engine: Engine


_lock = threading.Lock()
_opened: dict[int, _Opened] = {}
_given: dict[int, Engine] = {}


def give_engine(cluster: Cluster, engine: Engine | None) -> None:
    """Use this engine object for a cluster in this process (replays and tests), or stop doing so (None)."""
    if engine is None:
        _given.pop(cluster.pk, None)
    else:
        _given[cluster.pk] = engine


def attached_clusters() -> Iterator[Cluster]:
    """Return the clusters that the loop works for, in a stable order; excludes clusters that are checking or
    refused.
    """
    attached = Cluster.objects.filter(detached_at=None, state=Cluster.ATTACHED)
    return attached.order_by("pk").iterator()


def engine_for(cluster: Cluster) -> Engine:
    """Return the cluster's engine; close and reopen it if its settings or credentials changed.

    Raises EngineUnreachable when it cannot be opened, for example because the credentials cannot be decrypted.
    """
    if cluster.pk in _given:
        return _given[cluster.pk]
    # what is sealed stays sealed while it is the same
    opened_with = (cluster.engine, cluster.name, cluster.scheduler, cluster.settings, cluster.credentials)
    words = repr((*opened_with, cluster.has_found("mpi_operator")))
    known = _opened.get(cluster.pk)
    if known is not None and known.words == words:
        return known.engine
    with _lock:
        known = _opened.get(cluster.pk)
        if known is None or known.words != words:
            _close(cluster.pk)
            known = _opened[cluster.pk] = _Opened(words, _open(cluster))
        return known.engine


def close_engines(keep: Collection[int] = ()) -> None:
    """Close all engines except those of the clusters with these primary keys."""
    with _lock:
        for key in [key for key in _opened if key not in keep]:
            _close(key)


def _open(cluster: Cluster) -> Engine:
    try:
        return open_engine(cluster.engine, engine_settings(cluster), settings.STATE_DIR)
    except (CredentialsUnreadable, EngineRefused, ValueError) as error:
        raise EngineUnreachable(f"Cluster {cluster.name} cannot be opened: {error}") from error


def _close(key: int) -> None:
    """Close an open engine. Errors are logged: they must not keep the next engine from opening."""
    known = _opened.pop(key, None)
    if known is None:
        return
    try:
        known.engine.close()
    except Exception:
        logger.exception("the engine of cluster %s could not be closed", key)
