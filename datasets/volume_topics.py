"""Live topic of a volume with its snapshots."""

from controlplane.live.registry import Reading, TopicKind, Touch, parse_id
from datasets.models import Volume
from datasets.queries.volumes import snapshot_rows, snapshot_shapes, volume_rows, volume_shape

SNAPSHOTS_MOST = 100


def read_volume(volume_id: str, _project_id: int) -> Reading | None:
    """Return the topic's state of a volume with its newest snapshots; None if it does not exist."""
    volume = next(iter(volume_rows(Volume.objects.filter(pk=volume_id))), None)
    if volume is None:
        return None
    snapshots = snapshot_rows(volume.snapshots.order_by("-number")[:SNAPSHOTS_MOST])
    shown = {row["id"]: row for row in snapshot_shapes(snapshots)}
    return Reading({"volume": {volume_id: volume_shape(volume)}, "snapshots": shown})


def _project_of_volume(volume_id: str) -> int | None:
    return Volume.objects.filter(pk=volume_id).values_list("project_id", flat=True).first()


def _is_volume_touched(touch: Touch) -> bool:
    """Return whether the event may change the topic: it is about the volume, or about any job of its project, whether
    or not the job mounts the volume."""
    event = touch.event
    if event.data.get("volume") == touch.subject:
        return True
    return event.project_id == touch.project_id and event.kind.startswith("job.")


VOLUME = TopicKind("volume", parse_id, _project_of_volume, read_volume, _is_volume_touched)
