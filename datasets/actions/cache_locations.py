"""Verbs on cache locations, the cache directories of a cluster's nodes. Each verb is one transaction with one
event."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.db import IntegrityError, transaction

from controlplane import fields
from controlplane.access import Actor, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict, invalid
from controlplane.models import Cluster, Event
from datasets.actions.caches import location_for
from datasets.models import CacheLocation
from datasets.queries.caches import directory_of, has_cache_volumes

MOST_POOLS = 50
# Prefix (253 characters), slash and name of a label.
NODE_LABELS = fields.LABEL_NAMES._replace(
    longest=317, words="letters, digits, '-', '_', '.' and '/', and begin and end with a letter or digit"
)
# Readers of what a request or form states: `room_bytes` and `node_labels`.
read_room = fields.whole(0, (1 << 63) - 1)
read_labels = fields.mapped(NODE_LABELS, fields.text(63), MOST_POOLS)


def create_location(cluster: Cluster, values: Mapping[str, Any], *, actor: Actor) -> CacheLocation:
    """Create a cache location for some nodes of a cluster. `values` (validated): name, node_pools or
    node_labels, and optionally directory, room_bytes, unused_days.

    Raises Invalid if the cluster has no cache directories, if `values` names no nodes, or if the directory overlaps
    another location's or cannot be read; Conflict if the name is in use.
    """
    if has_cache_volumes(cluster):
        words = f"Caches of {cluster.name} are on a volume of each project, which all of its nodes mount."
        raise invalid("/cluster", "no_location", words)
    if not values.get("node_pools") and not values.get("node_labels"):
        raise invalid(
            "/node_pools", "required", "Name the node pools, or the labels of nodes, that read from it."
        )
    with transaction.atomic():
        location_for(cluster)
        _refuse_directory(values.get("directory", ""))
        try:
            with transaction.atomic():
                location = CacheLocation.objects.create(cluster=cluster, is_default=False, **values)
        except IntegrityError as error:
            detail = f"There is a cache location named {values['name']} already; choose another name."
            raise Conflict("name_in_use", detail) from error
        write_audit(actor, "cache_location.create", "cache_location", location.name, after=dict(values))
        Event.objects.append([Event(kind="cache_location.created", actor=actor.name, data=dict(values))])
    return location


def edit_location(location: CacheLocation, changes: Mapping[str, Any], *, actor: Actor) -> CacheLocation:
    """Change the size limit, the age limit or the nodes of a location. `changes`: validated values by field. Running
    jobs continue to read from their location. Raises Invalid if the default location is given nodes, or another one
    is left without."""
    if location.is_default and (changes.get("node_pools") or changes.get("node_labels")):
        words = f"{location.name} serves all nodes that no other location serves; create another one for some of them."
        raise invalid("/node_pools", "is_default", words)
    with transaction.atomic():
        reread(location, lock=True)
        before = {name: getattr(location, name) for name in changes}
        for name, value in changes.items():
            setattr(location, name, value)
        if not (location.is_default or location.node_pools or location.node_labels):
            words = "Name the node pools, or the labels of nodes, that read from it; or delete it."
            raise invalid("/node_pools", "required", words)
        location.save(update_fields=list(changes))
        write_audit(
            actor, "cache_location.edit", "cache_location", location.name, before=before, after=dict(changes)
        )
        Event.objects.append([Event(kind="cache_location.edited", actor=actor.name, data=dict(changes))])
    return location


def delete_location(location: CacheLocation, *, actor: Actor) -> None:
    """Delete a location; its nodes then use the cluster's default location. Raises Conflict if it has caches
    or is the default."""
    with transaction.atomic():
        reread(location, lock=True)
        if location.is_default:
            raise Conflict(
                "is_default", f"{location.name} serves all other nodes of its cluster and cannot be deleted."
            )
        if count := location.caches.count():
            detail = f"{location.name} has {count} caches; remove them first: yard dataset uncache"
            raise Conflict("cache_location_in_use", detail)
        write_audit(actor, "cache_location.delete", "cache_location", location.name)
        Event.objects.append(
            [Event(kind="cache_location.deleted", actor=actor.name, data={"name": location.name})]
        )
        location.delete()


def _refuse_directory(directory: str) -> None:
    """Raise Invalid for a directory inside another location's, or containing one: a location removes trees
    that it did not create from its directory. Also for a directory that cannot be read."""
    if not directory:
        return
    wanted = Path(directory)
    if not wanted.is_absolute() or ".." in wanted.parts:
        raise invalid("/directory", "not_an_absolute_path", "Give an absolute path without '..'.")
    for other in CacheLocation.objects.filter(project=None):
        known = directory_of(other)
        if wanted == known or known in wanted.parents:
            detail = f"{directory} is the directory of {other.name} or below it; choose another."
            raise invalid("/directory", "directory_in_use", detail)
    try:
        # It may not exist yet: the first fill creates it.
        wanted.exists()
    except OSError as error:
        raise invalid("/directory", "not_readable", f"{directory}: {error.strerror}.") from error
