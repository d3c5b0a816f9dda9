"""REST views of volumes and storage classes."""

from collections.abc import Callable
from typing import Any

from controlplane import fields
from controlplane.access import project_for
from controlplane.api import query
from controlplane.api.bodies import BodyField, label_field
from controlplane.api.json_schema import INTEGER, STRING, listed, nullable, record, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import (
    IN_STATES,
    OF_PROJECTS,
    WITH_NAMES,
    Filter,
    Listing,
    fields_parameter,
    paged,
    trimmed,
)
from controlplane.models import Role
from datasets.access import visible_volumes, volume_for
from datasets.actions.volumes import (
    SNAPSHOT_MINUTES,
    clone_volume,
    create_volume,
    delete_volume,
    edit_volume,
    resize_volume,
    set_access_mode,
    set_service_tier,
)
from datasets.api.schemas import VOLUME
from datasets.models import Volume
from datasets.queries.volumes import storage_classes_shown, volume_rows, volume_shape, volume_shapes
from jobs.fields.mounts import ACCESS_MODES, access_mode, size_bytes

SIZE = {"anyOf": [{"type": "integer"}, {"type": "string"}], "description": 'Bytes, or a text such as "10Gi".'}
MODE = {**STRING, "enum": list(ACCESS_MODES)}
MODE_FIELD = BodyField(access_mode, MODE)
Action = Callable[..., Volume]
_label = label_field(63, is_required=True)
_keep = BodyField(fields.optional(fields.whole(1, 100_000)), nullable({**INTEGER, "minimum": 1}))
_minutes = BodyField(
    fields.optional(fields.whole(*SNAPSHOT_MINUTES)),
    nullable({**INTEGER, "minimum": SNAPSHOT_MINUTES[0], "maximum": SNAPSHOT_MINUTES[1]}),
)
RULES = {"keep_last": _keep, "keep_days": _keep}
CHANGES = {**RULES, "snapshot_minutes": _minutes}
NEW_VOLUME = {
    "project": BodyField(fields.dns_label(50), STRING, is_required=True),
    "name": _label,
    "size": BodyField(size_bytes, SIZE, is_required=True),
    "storage_class": BodyField(fields.dns_label(63), STRING),
    "service_tier": BodyField(fields.text(63), STRING),
    "access_mode": MODE_FIELD,
    **RULES,
}
CLONE = {"name": _label, "access_mode": MODE_FIELD}
RESIZE = {"size": BodyField(size_bytes, SIZE, is_required=True)}
ACCESS_MODE = {"access_mode": BodyField(access_mode, MODE, is_required=True)}
SERVICE_TIER = {"service_tier": BodyField(fields.text(63), STRING, is_required=True)}
VOLUMES = Listing(
    VOLUME,
    {"name": ("name", "id"), "created_at": ("created_at", "id")},
    "name",
    {
        "name": WITH_NAMES,
        "project": OF_PROJECTS,
        "storage_class": Filter("storage_class__in", query.texts("Of these storage classes.")),
        "state": IN_STATES,
    },
)


class StorageClasses(ApiView):
    """The storage classes of this installation and of its clusters, defaults first."""

    @operation(
        "The storage classes of this installation and of its Kubernetes clusters, defaults first",
        answer=record("`service_tiers`: MiB/s per TiB.", results=listed(ref("StorageClass"))),
    )
    def get(self, call: Call) -> Answer:
        return Answer({"results": storage_classes_shown()})


class Volumes(ApiView):
    """Volumes of every project that the caller may see."""

    @VOLUMES.operation("List volumes", "Volume")
    def get(self, call: Call) -> Answer:
        return paged(call, visible_volumes(call.actor), VOLUMES, fetch=volume_rows, shape=volume_shapes)

    @operation("Create a volume", answer=ref("Volume"), status=201, body=NEW_VOLUME)
    def post(self, call: Call) -> Answer:
        body = dict(call.body)
        project = project_for(call.actor, body.pop("project"), needed=Role.MEMBER)
        return _answer(call, create_volume(project, body, actor=call.actor), 201)


class VolumeDetail(ApiView):
    """A volume, by id. Deleting it deletes its content; its snapshots stay."""

    @operation("A volume", answer=ref("Volume"), query={"fields": fields_parameter(VOLUME)})
    def get(self, call: Call, volume_id: str) -> Answer:
        return _answer(call, volume_for(call.actor, volume_id))

    @operation(
        "Change how often a snapshot of a volume is taken, and which are kept",
        answer=ref("Volume"),
        body=CHANGES,
    )
    def patch(self, call: Call, volume_id: str) -> Answer:
        volume = call.require_match(volume_for(call.actor, volume_id, needed=Role.OWNER), _revision)
        if call.body:
            edit_volume(volume, call.body, actor=call.actor)
        return _answer(call, volume)

    @operation("Delete a volume that no unfinished job mounts; its snapshots stay", answer=ref("Volume"))
    def delete(self, call: Call, volume_id: str) -> Answer:
        volume = call.require_match(volume_for(call.actor, volume_id, needed=Role.OWNER), _revision)
        delete_volume(volume, actor=call.actor)
        return Answer(volume_shape(volume))


class VolumeResize(ApiView):
    """Change the size of a volume."""

    @operation("Change the size of a volume", answer=ref("Volume"), body=RESIZE)
    def post(self, call: Call, volume_id: str) -> Answer:
        return _apply(call, volume_id, resize_volume, "size")


class VolumeClone(ApiView):
    """A new volume with the content that another has now."""

    @operation("Create a copy of a volume", answer=ref("Volume"), status=201, body=CLONE)
    def post(self, call: Call, volume_id: str) -> Answer:
        volume = volume_for(call.actor, volume_id, needed=Role.MEMBER)
        return Answer(volume_shape(clone_volume(volume, **call.body, actor=call.actor)), 201)


class VolumeAccessMode(ApiView):
    """Change how many jobs may mount a volume at once."""

    @operation("Change the access mode of a volume", answer=ref("Volume"), body=ACCESS_MODE)
    def post(self, call: Call, volume_id: str) -> Answer:
        return _apply(call, volume_id, set_access_mode, "access_mode")


class VolumeServiceTier(ApiView):
    """Change the service tier of a volume."""

    @operation(
        "Change the service tier of a volume; it stays mounted where it is",
        answer=ref("Volume"),
        body=SERVICE_TIER,
    )
    def post(self, call: Call, volume_id: str) -> Answer:
        return _apply(call, volume_id, set_service_tier, "service_tier")


def _answer(call: Call, volume: Volume, status: int = 200) -> Answer:
    return Answer(trimmed(call, volume_shape(volume)), status, revision=_revision(volume))


def _apply(call: Call, volume_id: str, action: Action, field: str) -> Answer:
    volume = volume_for(call.actor, volume_id, needed=Role.MEMBER)
    return Answer(volume_shape(action(volume, call.body[field], actor=call.actor)))


def _revision(volume: Volume) -> Any:
    rules = [volume.keep_last, volume.keep_days, volume.snapshot_minutes]
    return [volume.size_bytes, volume.access_mode, volume.service_tier, volume.state, *rules]
