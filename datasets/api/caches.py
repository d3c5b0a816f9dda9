"""REST views of caches and cache locations."""

from typing import Any
from uuid import UUID

from controlplane import fields
from controlplane.access import Actor, NotVisible, project_for, require_admin, require_write
from controlplane.actions.errors import invalid
from controlplane.api import query
from controlplane.api.bodies import BodyField
from controlplane.api.json_schema import INTEGER, STRING, listed, nullable, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import Filter, Listing, paged
from controlplane.models import Cluster, Project, Role
from datasets.access import cache_for, version_for, visible_caches, visible_locations
from datasets.actions.cache_locations import (
    MOST_POOLS,
    NewLocation,
    delete_location,
    edit_location,
    new_location,
    read_labels,
    read_room,
    read_storage_class,
    save_location,
)
from datasets.actions.caches import cache_version, clear_cache, location_for, pin_cache, volume_at
from datasets.api.schemas import CACHE, CACHE_LOCATION
from datasets.models import Cache, CacheLocation, DatasetVersion
from datasets.queries.caches import (
    cache_rows,
    cache_shape,
    cache_shapes,
    disk_free_bytes,
    has_cache_volumes,
    is_at,
    location_rows,
    location_shape,
    location_shapes,
)
from jobs.fields.mounts import ACCESS_MODES, access_mode

LONGEST_DAYS = 3650
CACHES = Listing(
    CACHE,
    {"created_at": ("created_at", "id"), "used_at": ("used_at", "id")},
    "-created_at",
    {
        "dataset": Filter("version__dataset__name__in", query.texts("Of datasets with these names.")),
        "project": Filter(
            "version__dataset__project__name__in", query.texts("Of datasets of these projects.")
        ),
        "state": Filter("state__in", query.choices(Cache.STATES, "In these states.")),
        "version_id": Filter("version_id__in", query.texts("Of these versions, by id.")),
    },
)
AT = {"location": query.texts("At these locations, or on volumes of projects there.")}
LOCATIONS = Listing(CACHE_LOCATION, {"name": ("name",)}, "name")
NEW_CACHE = {
    "version_id": BodyField(fields.text(36), {**STRING, "format": "uuid"}, is_required=True),
    "location": BodyField(fields.text(130), STRING),
}
PLACE = {
    "node_pools": BodyField(fields.listed(fields.text(50), MOST_POOLS), listed(STRING)),
    "node_labels": BodyField(read_labels, {"type": "object", "additionalProperties": STRING}),
}
NEW_LOCATION = {
    "name": BodyField(fields.dns_label(63), STRING, is_required=True),
    "cluster": BodyField(fields.text(50), STRING, is_required=True),
    "directory": BodyField(fields.text(500), STRING),
    "storage_class": BodyField(read_storage_class, STRING),
    "access_mode": BodyField(access_mode, {**STRING, "enum": list(ACCESS_MODES)}),
    "room_bytes": BodyField(fields.optional(read_room), nullable(INTEGER)),
    "unused_days": BodyField(fields.whole(1, LONGEST_DAYS), {**INTEGER, "minimum": 1}),
    **PLACE,
}
CHANGES = {
    **PLACE,
    "room_bytes": BodyField(fields.optional(read_room), nullable(INTEGER)),
    "unused_days": BodyField(fields.whole(1, LONGEST_DAYS), {**INTEGER, "minimum": 1}),
}


class Caches(ApiView):
    """Caches of all datasets that the caller may see."""

    @CACHES.operation("List caches", "Cache", AT)
    def get(self, call: Call) -> Answer:
        _check_ids(call.query["version_id"])
        rows = visible_caches(call.actor)
        if (names := call.query["location"]) is not None:
            rows = rows.filter(is_at(names))
        return paged(call, rows, CACHES, fetch=cache_rows, shape=cache_shapes)

    @operation(
        "Cache a version at a location, by default its project's; returns an existing cache",
        answer=ref("Cache"),
        status=201,
        body=NEW_CACHE,
    )
    def post(self, call: Call) -> Answer:
        require_write(call.actor)
        version = version_for(call.actor, call.body["version_id"], needed=Role.MEMBER)
        location = _location_for(call.actor, version, call.body.get("location", ""))
        cache = cache_version(version, location, actor=call.actor)
        return Answer(cache_shape(cache), 201)


class CacheDetail(ApiView):
    """A cache, by id. Deleting it removes its files, or cancels its fill."""

    @operation("A cache", answer=ref("Cache"))
    def get(self, call: Call, cache_id: str) -> Answer:
        cache = cache_for(call.actor, cache_id)
        return Answer(cache_shape(cache), revision=_revision(cache))

    @operation("Remove a cache, or cancel its fill; the version stays in the lake", answer=ref("Cache"))
    def delete(self, call: Call, cache_id: str) -> Answer:
        cache = call.require_match(cache_for(call.actor, cache_id, needed=Role.MEMBER), _revision)
        return Answer(cache_shape(clear_cache(cache, actor=call.actor)))


class CachePin(ApiView):
    """Protect a cache from removal."""

    @operation("Pin a cache: it is not removed by age or to free space", answer=ref("Cache"))
    def post(self, call: Call, cache_id: str) -> Answer:
        return _pinned(call, cache_id, True)


class CacheUnpin(ApiView):
    """End the protection of a cache."""

    @operation("Unpin a cache: it may be removed by age or to free space", answer=ref("Cache"))
    def post(self, call: Call, cache_id: str) -> Answer:
        return _pinned(call, cache_id, False)


def _new_location(call: Call) -> NewLocation:
    require_admin(call.actor)
    values = dict(call.body)
    cluster = Cluster.objects.filter(detached_at=None, name=values.pop("cluster")).first()
    if cluster is None:
        raise NotVisible("There is no such cluster.")
    return new_location(cluster, values)


def _location_and_disk(call: Call, name: str) -> tuple[CacheLocation, int | None]:
    require_admin(call.actor)
    location = _location(call.actor, name)
    return location, disk_free_bytes(location)


class CacheLocations(ApiView):
    """Cache locations of all clusters."""

    @LOCATIONS.operation("List cache locations with their room and hits", "CacheLocation")
    def get(self, call: Call) -> Answer:
        return paged(
            call, visible_locations(call.actor), LOCATIONS, fetch=location_rows, shape=location_shapes
        )

    @operation(
        "Create a cache location for some nodes of a cluster",
        answer=ref("CacheLocation"),
        status=201,
        body=NEW_LOCATION,
        # In the transaction, all writers would wait for the disk.
        before=_new_location,
    )
    def post(self, call: Call) -> Answer:
        new: NewLocation = call.prepared
        return _answer(save_location(new, actor=call.actor), new.disk, 201)


class CacheLocationDetail(ApiView):
    """A cache location, by name. Only admins may change it, or delete it while it has no caches."""

    @operation("A cache location", answer=ref("CacheLocation"))
    def get(self, call: Call, name: str) -> Answer:
        location = _location(call.actor, name)
        return _answer(location, disk_free_bytes(location))

    @operation(
        "Change a location's room, age limit or nodes",
        answer=ref("CacheLocation"),
        body=CHANGES,
        before=_location_and_disk,
    )
    def patch(self, call: Call, name: str) -> Answer:
        location, disk = call.prepared
        call.require_match(location, _location_revision)
        if call.body:
            edit_location(location, call.body, actor=call.actor)
        return _answer(location, disk)

    @operation("Delete a location without caches", answer={}, status=204)
    def delete(self, call: Call, name: str) -> Answer:
        require_admin(call.actor)
        location = call.require_match(_location(call.actor, name), _location_revision)
        delete_location(location, actor=call.actor)
        return Answer(None, 204)


def _pinned(call: Call, cache_id: str, is_pinned: bool) -> Answer:
    cache = cache_for(call.actor, cache_id, needed=Role.MEMBER)
    return Answer(cache_shape(pin_cache(cache, is_pinned, actor=call.actor)))


def _location(actor: Actor, name: str) -> CacheLocation:
    location = location_rows(visible_locations(actor).filter(name=name))
    if not location:
        raise NotVisible(f"There is no cache location named {name!r}.")
    return location[0]


def _answer(location: CacheLocation, disk: int | None, status: int = 200) -> Answer:
    return Answer(location_shape(location, disk), status, revision=_location_revision(location))


def _revision(cache: Cache) -> Any:
    return [cache.state, cache.is_pinned]


def _location_revision(location: CacheLocation) -> Any:
    return [location.node_pools, location.node_labels, location.room_bytes, location.unused_days]


def _location_for(actor: Actor, version: DatasetVersion, name: str) -> CacheLocation:
    """Return the cache location to use for a version: by the location's or cluster's `name`, "" for that of the
    version's project. A project's volume accepts only versions that its jobs may mount. Raises NotVisible for an
    unknown name, and what `_volume` raises."""
    project = version.dataset.project
    if not name:
        return location_for(project.cluster, project)
    found = visible_locations(actor).filter(name=name, cluster__detached_at=None)
    location = found.select_related("cluster", "project", "parent").first()
    if location is not None and (location.project in (None, project) or version.dataset.is_shared):
        return _volume(actor, location, project)
    cluster = Cluster.objects.filter(detached_at=None, name=name).first()
    if cluster is None:
        raise NotVisible(f"There is no cache location named {name!r}.")
    if has_cache_volumes(cluster):
        _refuse_elsewhere(project, cluster)
    return location_for(cluster, project)


def _volume(actor: Actor, location: CacheLocation, project: Project) -> CacheLocation:
    """Return where caches of `project` at a location are: in a cluster with volumes the project's own volume there,
    else the location. `location` may itself be a volume of another project. Raises Forbidden if the actor may not
    write to that project, since a cache uses its space and may displace others, and NotVisible if the actor has no role
    in it; Invalid if the volume's project has left the cluster."""
    if not has_cache_volumes(location.cluster):
        return location
    owner = location.project or project
    if owner != project:
        project_for(actor, owner.name, needed=Role.MEMBER)
    _refuse_elsewhere(owner, location.cluster)
    return volume_at(location, owner) if location.project is None else location


def _refuse_elsewhere(project: Project, cluster: Cluster) -> None:
    if project.cluster_id != cluster.pk:
        detail = f"{project.name} is in {project.cluster.name} and has no volume in {cluster.name}."
        raise invalid("/location", "no_location", detail)


def _check_ids(keys: list[str] | None) -> None:
    for key in keys or ():
        try:
            UUID(key)
        except ValueError as error:
            raise NotVisible("There is no such version that you can see.") from error
