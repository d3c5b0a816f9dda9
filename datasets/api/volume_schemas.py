"""JSON schemas of the API's answers about volumes and snapshots."""

from controlplane.api.json_schema import (
    BOOLEAN,
    INTEGER,
    STRING,
    TIME,
    UUID,
    Schema,
    listed,
    nullable,
    record,
)
from datasets.storage.drivers import drivers

OBJECT: Schema = {"type": "object", "additionalProperties": True}
STATUS = record(
    "`reason` and `message`: why it is in this state. `progress`: of the work under way, in bytes.",
    state=STRING,
    reason=STRING,
    message=STRING,
    progress=nullable(OBJECT),
)
USE = record(
    "An unfinished job that mounts the volume. `is_holding`: it has pods.",
    id=UUID,
    name=STRING,
    state=STRING,
    mount_path=STRING,
    read_only=BOOLEAN,
    is_holding=BOOLEAN,
)
STORAGE_CLASS = record(
    "Where volumes can be. `service_tiers`: MiB/s per TiB by tier, the default first. `cluster`: the Kubernetes cluster"
    " whose own class it is, as its last check found it; null for those of the control plane. `driver`: folder, csi, or"
    " the storage system that has the volumes.",
    name=STRING,
    description=STRING,
    driver={**STRING, "enum": ["csi", *drivers()]},
    service_tiers=OBJECT,
    cluster=nullable(STRING),
)
VOLUME = record(
    "A directory that outlives jobs. States: creating, ready, failed, deleting. `used_bytes`: as last measured;"
    " `is_measured_in_part`: at least that much. `throughput_mib_per_second` is recorded, not enforced.",
    id=UUID,
    project=STRING,
    name=STRING,
    storage_class=STRING,
    service_tier=STRING,
    throughput_mib_per_second=nullable(INTEGER),
    access_mode=STRING,
    size_bytes=INTEGER,
    used_bytes=nullable(INTEGER),
    files=nullable(INTEGER),
    measured_at=nullable(TIME),
    is_measured_in_part=BOOLEAN,
    is_size_enforced=BOOLEAN,
    origin=nullable(OBJECT),
    keep_last=nullable(INTEGER),
    keep_days=nullable(INTEGER),
    snapshot_minutes=nullable(INTEGER),
    next_snapshot_at=nullable(TIME),
    created_by=STRING,
    created_at=TIME,
    status=STATUS,
    jobs=listed(USE),
)
VOLUME_FILE = record(
    "An entry of a directory of a volume.",
    name=STRING,
    path=STRING,
    kind={**STRING, "enum": ["file", "directory", "link", "other"]},
    size_bytes=INTEGER,
    modified_at=TIME,
)
SNAPSHOT = record(
    "A volume at one moment. States: pending, ready, failed, deleting. `cause`: request, or the event of the job whose"
    " `progress` at that moment it records. `consistency`: idle (no job had pods with it), quiesced (all had paused)"
    " or crash (as after a power cut). `new_bytes`: of files that the snapshot before does not share.",
    id=UUID,
    name=STRING,
    number=INTEGER,
    project=STRING,
    volume=STRING,
    volume_id=nullable(UUID),
    storage_class=STRING,
    volume_bytes=INTEGER,
    cause=STRING,
    job_id=nullable(UUID),
    job=nullable(STRING),
    attempt=nullable(INTEGER),
    progress=OBJECT,
    consistency=nullable(STRING),
    files=nullable(INTEGER),
    size_bytes=nullable(INTEGER),
    new_bytes=nullable(INTEGER),
    created_by=STRING,
    created_at=TIME,
    ready_at=nullable(TIME),
    status=STATUS,
)
COMPONENTS: dict[str, Schema] = {
    "StorageClass": STORAGE_CLASS,
    "Volume": VOLUME,
    "VolumeFile": VOLUME_FILE,
    "Snapshot": SNAPSHOT,
}
