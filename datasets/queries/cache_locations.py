"""Read the cache locations of a cluster: the nodes that each serves, and the volumes that projects have there."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from django.db.models import Prefetch, QuerySet, prefetch_related_objects

from controlplane.engines.kinds import engine_kind, is_delegated
from controlplane.models import Cluster, Node
from controlplane.models.prepared import prepared
from datasets.locality import Location, location_of
from datasets.models import Cache, CacheLocation, Dataset
from datasets.queries.caches import has_cache_volumes, room_of
from datasets.storage.claims import CacheClaim, cache_claim_name

# The longest list of nodes among which a pod may run: each is a term of its affinity.
MOST_NODES = 100


def has_locations(cluster: Cluster) -> bool:
    """Return whether the cluster can have several cache locations: its pods can read caches, and Trainyard, not
    another scheduler, chooses the node of each pod."""
    mounts = engine_kind(cluster.engine).mounts_volumes
    return mounts or (has_cache_volumes(cluster) and not is_delegated(cluster.scheduler))


def locations_of(cluster: Cluster) -> list[Location]:
    """Return the cluster's cache locations with the nodes that each serves; [] if it has or uses only one."""
    if not has_locations(cluster):
        return []
    found = [_location(row) for row in _locations(cluster.pk)]
    return found if len(found) > 1 else []


@prepared
def _locations(cluster: int) -> QuerySet[CacheLocation]:
    rows = CacheLocation.objects.filter(cluster=cluster, project=None)
    return rows.only("name", "node_pools", "node_labels", "is_default", "access_mode")


def _location(location: CacheLocation) -> Location:
    if location.is_default:
        return Location(location.name)
    is_of_one_node = location.access_mode == CacheLocation.ONE_NODE
    return Location(location.name, tuple(location.node_pools), location.node_labels, is_of_one_node)


def crowded_locations(cluster: Cluster, locations: Sequence[Location]) -> dict[str, str]:
    """Return, by name, the locations with ReadWriteOnce volumes that serve several nodes, each with an error for
    users. One query; none if all volumes can be mounted on many nodes."""
    of_one = {one.name for one in locations if one.is_of_one_node}
    if not of_one:
        return {}
    served = Counter(
        location_of(pool or "", labels, locations)
        for pool, labels in _usable(cluster).values_list("pool__name", "labels")
    )
    return {name: crowded_words(name, served[name]) for name in of_one if served[name] > 1}


def crowded_words(name: str, nodes: int) -> str:
    """Return the error for the location `name` with a ReadWriteOnce volume that serves this number of nodes; no
    pod may use it."""
    return f"{name} serves {nodes} nodes, and its ReadWriteOnce volume is for one."


def owner_of(cluster: Cluster, project_id: int) -> int | None:
    """Return the id of the project whose volumes hold the caches for a project's jobs: its own, or None if the
    cluster's caches are shared by all projects."""
    return project_id if has_cache_volumes(cluster) else None


def location_names(cluster: Cluster) -> dict[int, str]:
    """Return location names by the ids of the cluster's rows. A project's volume has the name of its parent, or of
    the default location."""
    columns = ("pk", "name", "parent__name", "project_id", "is_default")
    found = list(CacheLocation.objects.filter(cluster=cluster).values_list(*columns))
    shared = (name for _, name, _, project, is_default in found if is_default and project is None)
    default = next(shared, cluster.name)
    return {pk: name if project is None else parent or default for pk, name, parent, project, _ in found}


def cache_states(
    dataset: Dataset, versions: Collection[UUID]
) -> tuple[list[str], Mapping[str, Mapping[str, str]]]:
    """Return the names of the locations where the dataset's versions can be cached, the default one first, and by the
    id of each of these versions the states of its caches by location; [""] for a cluster without named locations."""
    cluster = dataset.project.cluster
    ordered = sorted(locations_of(cluster), key=lambda location: (not location.is_default, location.name))
    names = [location.name for location in ordered]
    known, owner = location_names(cluster) if names else {}, owner_of(cluster, dataset.project_id)
    states: dict[str, dict[str, str]] = defaultdict(dict)
    for cache in Cache.objects.filter(version__in=versions).select_related("location"):
        if not names or cache.location.project_id == owner:
            states[str(cache.version_id)][known.get(cache.location_id, "")] = cache.state
    return names or [""], states


def limits_of(cluster: Cluster) -> dict[str, int | None]:
    """Return the limits of the cluster's locations in bytes, by name; None: only the disk limits them."""
    rows = CacheLocation.objects.filter(cluster=cluster, project=None).select_related("cluster")
    return {location.name: room_of(location) for location in rows}


def locations_on(cluster: Cluster, nodes: Collection[str]) -> dict[str, CacheLocation | None]:
    """Return the location that each of these nodes reads from, by node name; None: the default location, which has no
    row yet."""
    if not has_locations(cluster):
        return dict.fromkeys(nodes)
    # Read once for all pods of a job.
    shared = Prefetch("cache_locations", CacheLocation.objects.filter(project=None))
    prefetch_related_objects([cluster], shared)
    rows = {one.name: one for one in cluster.cache_locations.all()}
    if len(rows) < 2:
        return dict.fromkeys(nodes, next(iter(rows.values()), None))
    locations = [_location(one) for one in rows.values()]
    found = Node.objects.filter(cluster=cluster, name__in=nodes).values_list("name", "pool__name", "labels")
    return {name: rows[location_of(pool or "", labels, locations)] for name, pool, labels in found}


def claim_name_at(location: CacheLocation | None) -> str:
    """Return the name of the PersistentVolumeClaim that holds a project's caches at a location; None: at the
    default location."""
    return cache_claim_name(None if location is None or location.is_default else location.pk)


def claim_of(volume: CacheLocation) -> CacheClaim:
    """Return the claim of a project's volume, with the nodes that its location serves now."""
    location, nodes = volume.parent, nodes_of(volume)
    if location is None:
        return CacheClaim(nodes=nodes)
    size, name = volume.room_bytes or 0, cache_claim_name(location.pk)
    return CacheClaim(name, location.storage_class, size, location.access_mode, nodes)


def nodes_of(volume: CacheLocation) -> tuple[str, ...]:
    """Return at most MOST_NODES nodes that read from a project's volume and may run pods, by name. () means no
    restriction if the cluster has one location and no cordoned node; else that there is no such node."""
    locations = locations_of(volume.cluster)
    if not locations:
        # The cluster's scheduler does not know which nodes are cordoned here.
        has_cordoned = Node.objects.filter(cluster=volume.cluster, is_cordoned=True).exists()
        names = _usable(volume.cluster).order_by("name").values_list("name", flat=True)
        return tuple(names[:MOST_NODES]) if has_cordoned else ()
    rows = _usable(volume.cluster).order_by("name").values_list("name", "pool__name", "labels")
    wanted = location_names(volume.cluster).get(volume.pk)
    found = [name for name, pool, labels in rows if location_of(pool or "", labels, locations) == wanted]
    return tuple(found[:MOST_NODES])


def _usable(cluster: Cluster) -> QuerySet[Node]:
    return Node.objects.filter(cluster=cluster, is_ready=True, is_cordoned=False, is_closed=False)
