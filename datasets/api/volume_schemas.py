"""JSON schemas of what the API answers about volumes and snapshots."""

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
    "Where volumes can be. `service_tiers`: MiB/s per TiB by tier, the default first.",
    name=STRING,
    description=STRING,
    service_tiers=OBJECT,
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
COMPONENTS: dict[str, Schema] = {
    "StorageClass": STORAGE_CLASS,
    "Volume": VOLUME,
    "VolumeFile": VOLUME_FILE,
}
