"""REST views of snapshots."""

from dataclasses import replace
from typing import Any

from controlplane import fields
from controlplane.api import query
from controlplane.api.bodies import BodyField, label_field
from controlplane.api.json_schema import STRING, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import IN_STATES, OF_PROJECTS, Filter, Listing, paged
from controlplane.models import Role
from datasets.access import snapshot_for, visible_snapshots, volume_for
from datasets.actions.snapshots import delete_snapshot, restore_snapshot, take_snapshot
from datasets.api.schemas import SNAPSHOT
from datasets.api.volumes import MODE_FIELD
from datasets.models import Snapshot
from datasets.queries.volumes import (
    snapshot_rows,
    snapshot_shape,
    snapshot_shapes,
    snapshots_taken_for,
    volume_shape,
)

NEW_SNAPSHOT = {"volume": BodyField(fields.text(36), {**STRING, "format": "uuid"}, is_required=True)}
RESTORE = {"name": label_field(63, is_required=True), "access_mode": MODE_FIELD}
CAUSES = query.texts("With these causes.")
SNAPSHOTS = Listing(
    SNAPSHOT,
    {"created_at": ("created_at", "id"), "number": ("number", "id")},
    "-created_at",
    {
        "project": OF_PROJECTS,
        "volume": Filter("volume_name__in", query.texts("Of volumes with these names.")),
        "number": Filter("number", query.whole(1, 1 << 31, "With this number.")),
        "job": Filter("job_name__in", query.texts("That record the progress of jobs with these names.")),
        "cause": Filter("pk__in", replace(CAUSES, read=lambda text: snapshots_taken_for(CAUSES.read(text)))),
        "state": IN_STATES,
    },
)


class Snapshots(ApiView):
    """Snapshots of every project that the caller may see."""

    @SNAPSHOTS.operation("List snapshots, newest first", "Snapshot")
    def get(self, call: Call) -> Answer:
        return paged(
            call, visible_snapshots(call.actor), SNAPSHOTS, fetch=snapshot_rows, shape=snapshot_shapes
        )

    @operation("Take a snapshot of a volume (its id)", answer=ref("Snapshot"), status=201, body=NEW_SNAPSHOT)
    def post(self, call: Call) -> Answer:
        volume = volume_for(call.actor, call.body["volume"], needed=Role.MEMBER)
        return Answer(snapshot_shape(take_snapshot(volume, actor=call.actor)), 201)


class SnapshotDetail(ApiView):
    """A snapshot, by id. Deleting it leaves the files that other snapshots share."""

    @operation("A snapshot", answer=ref("Snapshot"))
    def get(self, call: Call, snapshot_id: str) -> Answer:
        snapshot = snapshot_for(call.actor, snapshot_id)
        return Answer(snapshot_shape(snapshot), revision=_revision(snapshot))

    @operation("Delete a snapshot; what others share with it stays", answer=ref("Snapshot"))
    def delete(self, call: Call, snapshot_id: str) -> Answer:
        snapshot = call.require_match(snapshot_for(call.actor, snapshot_id, needed=Role.OWNER), _revision)
        delete_snapshot(snapshot, actor=call.actor)
        return Answer(snapshot_shape(snapshot))


class SnapshotRestore(ApiView):
    """Create a volume from a snapshot."""

    @operation("Create a volume from a snapshot", answer=ref("Volume"), status=201, body=RESTORE)
    def post(self, call: Call, snapshot_id: str) -> Answer:
        snapshot = snapshot_for(call.actor, snapshot_id, needed=Role.MEMBER)
        return Answer(volume_shape(restore_snapshot(snapshot, **call.body, actor=call.actor)), 201)


def _revision(snapshot: Snapshot) -> Any:
    return [snapshot.state]
