"""The engines of the attached clusters, opened once per process."""

from collections.abc import Iterator

from django.conf import settings

from controlplane.engines.base import Engine
from controlplane.engines.registry import open_engine
from controlplane.models import Cluster

_opened: dict[tuple[int, str], Engine] = {}
_given: dict[int, Engine] = {}


def give_engine(cluster: Cluster, engine: Engine | None) -> None:
    """Use this engine object for a cluster in this process (replays and tests drive their own), or None again."""
    if engine is None:
        _given.pop(cluster.pk, None)
    else:
        _given[cluster.pk] = engine


def attached_clusters() -> Iterator[Cluster]:
    """Return the clusters that the loop works for, in a stable order."""
    return Cluster.objects.filter(detached_at=None).order_by("pk").iterator()


def engine_for(cluster: Cluster) -> Engine:
    """Return the cluster's engine; opened anew when its settings have changed."""
    if cluster.pk in _given:
        return _given[cluster.pk]
    key = (cluster.pk, repr((cluster.engine, cluster.settings)))
    if key not in _opened:
        _opened[key] = open_engine(cluster.engine, cluster.settings, settings.STATE_DIR)
    return _opened[key]
