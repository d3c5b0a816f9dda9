"""Verbs on cache locations, the cache directories of a cluster's nodes. Each verb is one transaction with one
event."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q

from controlplane import fields
from controlplane.access import Actor, reread
from controlplane.actions.audit import write_audit, write_fields
from controlplane.actions.errors import Conflict, invalid
from controlplane.actions.events import announce
from controlplane.actions.nodes import require_pools
from controlplane.models import Cluster, Command, Event
from datasets.actions.caches import location_for
from datasets.models import Cache, CacheLocation
from datasets.queries.cache_locations import has_locations
from datasets.queries.caches import directory_of, disk_free_bytes, has_cache_volumes
from datasets.storage.claims import cache_claim_name

REMOVE_VOLUME = "datasets.remove_cache_volume"
# Command.subject_kind
LOCATION = "cache_location"

MOST_POOLS = 50
# Prefix (253 characters), slash and name of a label.
NODE_LABELS = fields.LABEL_NAMES._replace(
    longest=317, words="letters, digits, '-', '_', '.' and '/', and begin and end with a letter or digit"
)
# Readers of what a request or form states: `room_bytes`, `storage_class` and `node_labels`.
read_room = fields.whole(0, (1 << 63) - 1)
read_storage_class = fields.dns_label(63)
read_labels = fields.mapped(NODE_LABELS, fields.text(63), MOST_POOLS)


@dataclass(frozen=True, slots=True)
class NewLocation:
    """A cache location to be created. `values`: its validated fields by name; `disk`: its `disk_free_bytes`."""

    cluster: Cluster
    values: Mapping[str, Any]
    disk: int | None


def create_location(cluster: Cluster, values: Mapping[str, Any], *, actor: Actor) -> CacheLocation:
    """Create a cache location: `new_location`, then `save_location`."""
    return save_location(new_location(cluster, values), actor=actor)


def new_location(cluster: Cluster, values: Mapping[str, Any]) -> NewLocation:
    """Return a cache location for some nodes of a cluster, for `save_location`. Writes no rows. Looks at the disk: call
    it outside of transactions. `values` (validated): name, node_pools or node_labels, and optionally directory (in a
    cluster with volumes: storage_class, access_mode), room_bytes, unused_days.

    Raises Invalid if the cluster supports only one location, if `values` names no nodes or a node pool that the cluster
    lacks, for fields that its kind of caches (directories or volumes) lacks, and for a directory that is not an
    absolute path or cannot be read.
    """
    _check_kind(cluster, values)
    if not values.get("node_pools") and not values.get("node_labels"):
        raise invalid(
            "/node_pools", "required", "Name the node pools, or the labels of nodes, that read from it."
        )
    _require_pools(cluster, values, [])
    if directory := values.get("directory"):
        _check_directory(Path(directory))
    return NewLocation(cluster, values, disk_free_bytes(CacheLocation(cluster=cluster, **values)))


def save_location(new: NewLocation, *, actor: Actor) -> CacheLocation:
    """Write a location from `new_location`, and return it. Raises Invalid if the cluster cannot have caches, and if the
    directory is another location's or below one; Conflict if the name is in use."""
    cluster, values = new.cluster, new.values
    with transaction.atomic():
        location_for(cluster)
        if directory := values.get("directory"):
            _refuse_shared(Path(directory))
        try:
            # A savepoint, because on PostgreSQL the error would abort the whole transaction.
            with transaction.atomic():
                location = CacheLocation.objects.create(cluster=cluster, is_default=False, **values)
        except IntegrityError as error:
            detail = f"There is a cache location named {values['name']} already; choose another name."
            raise Conflict("name_in_use", detail) from error
        write_audit(actor, "cache_location.create", "cache_location", location.name, after=dict(values))
        announce(Event(kind="cache_location.created", actor=actor.name, data=dict(values)))
    return location


def _require_pools(cluster: Cluster, values: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise Invalid if `values` names a node pool that the cluster lacks. A pool in `known`, which the location names
    already, may have been deleted since."""
    pools = enumerate(values.get("node_pools", ()))
    require_pools(cluster, {f"/node_pools/{place}": name for place, name in pools if name not in known})


def _check_kind(cluster: Cluster, values: Mapping[str, Any]) -> None:
    """Raise Invalid if the cluster supports only one location, or if `values` (fields of a location) do not fit:
    a directory if its caches are on volumes, a storage class or access mode if they are in directories."""
    has_volumes = has_cache_volumes(cluster)
    if has_volumes and not has_locations(cluster):
        words = (
            f"The scheduler of {cluster.name} chooses the nodes of its pods, so all of them mount one volume."
            " Locations of some nodes need the scheduler of Trainyard."
        )
        raise invalid("/cluster", "one_location", words)
    if has_volumes and values.get("directory"):
        words = f"Caches of {cluster.name} are on volumes; name a storage class instead."
        raise invalid("/directory", "not_a_directory", words)
    for name in ("storage_class", "access_mode"):
        if values.get(name) and not has_volumes:
            words = f"Caches of {cluster.name} are in directories of its nodes, not on volumes."
            raise invalid(f"/{name}", "not_a_volume", words)


def edit_location(location: CacheLocation, changes: Mapping[str, Any], *, actor: Actor) -> CacheLocation:
    """Change the size limit, the age limit or the nodes of a location, and return it. `changes`: validated values
    by field. Running jobs continue to read from their location. The projects' volumes at the location get the new
    age limit, but keep their size, which is that of their claims. Raises Invalid if nodes are set for the default
    location or a volume, if another location is left without nodes, and for a node pool that the cluster lacks."""
    has_own_nodes = not location.is_default and location.project_id is None
    if not has_own_nodes and (changes.get("node_pools") or changes.get("node_labels")):
        words = f"{location.name} serves all nodes that no other location serves; create another one for some of them."
        if not location.is_default:
            words = f"{location.name} is a volume and serves the nodes of its location; change that one."
        raise invalid("/node_pools", "is_default" if location.is_default else "is_volume", words)
    with transaction.atomic():
        reread(location, lock=True)
        _require_pools(location.cluster, changes, location.node_pools)
        before = write_fields(location, changes)
        if has_own_nodes and not (location.node_pools or location.node_labels):
            words = "Name the node pools, or the labels of nodes, that read from it; or delete it."
            raise invalid("/node_pools", "required", words)
        if "unused_days" in changes:
            location.volumes.update(unused_days=location.unused_days)
        write_audit(
            actor, "cache_location.edit", "cache_location", location.name, before=before, after=dict(changes)
        )
        announce(Event(kind="cache_location.edited", actor=actor.name, data=dict(changes)))
    return location


def delete_location(location: CacheLocation, *, actor: Actor) -> None:
    """Delete a location with the claims of its volumes; its nodes then use the cluster's default location. Raises
    Conflict if it has caches, is the default, or is a project's volume."""
    with transaction.atomic():
        reread(location, lock=True)
        if location.project is not None:
            words = f"{location.name} is the volume of {location.project.name}; delete the location that it is at."
            raise Conflict("is_volume", words)
        if location.is_default:
            raise Conflict(
                "is_default", f"{location.name} serves all other nodes of its cluster and cannot be deleted."
            )
        volumes = location.volumes.select_related("project")
        if count := Cache.objects.filter(Q(location=location) | Q(location__in=volumes)).count():
            removal = f"yard dataset uncache NAME@VERSION --location {location.name}"
            detail = f"{location.name} still has caches: {count}. Remove them first: {removal}"
            raise Conflict("cache_location_in_use", detail)
        for volume in volumes:
            _order_removal(volume, cache_claim_name(location.pk))
        write_audit(actor, "cache_location.delete", "cache_location", location.name)
        location.delete()
        announce(Event(kind="cache_location.deleted", actor=actor.name, data={"name": location.name}))


def _order_removal(volume: CacheLocation, claim: str) -> None:
    """Queue the removal of `claim`, the claim of a project's volume. Call it in the transaction that deletes the
    volume's row."""
    assert volume.project is not None
    payload = {"cluster": volume.cluster_id, "project": volume.project.name, "claim": claim}
    Command.objects.create(
        kind=REMOVE_VOLUME, subject_kind=LOCATION, subject_id=str(volume.pk), payload=payload
    )


def _check_directory(directory: Path) -> None:
    """Raise Invalid if the directory is not an absolute path, or cannot be read."""
    if not directory.is_absolute() or ".." in directory.parts:
        raise invalid("/directory", "not_an_absolute_path", "Give an absolute path without '..'.")
    try:
        # It may not exist yet: the first fill creates it.
        directory.exists()
    except OSError as error:
        raise invalid("/directory", "not_readable", f"{directory}: {error.strerror}.") from error


def _refuse_shared(directory: Path) -> None:
    """Raise Invalid if the directory is another location's or below one."""
    # Each location removes unknown trees from its directory.
    for other in CacheLocation.objects.filter(project=None):
        known = directory_of(other)
        if directory == known or known in directory.parents:
            detail = f"{directory} is the directory of {other.name} or below it; choose another."
            raise invalid("/directory", "directory_in_use", detail)
