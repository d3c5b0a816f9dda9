"""JSON schemas of the API's answers about data."""

from controlplane.api.json_schema import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    STRING,
    TIME,
    UUID,
    Schema,
    listed,
    nullable,
    partial,
    record,
)
from datasets.storage.drivers import drivers
from jobs.fields.code import ORIGIN

CODE_ENTRY = partial(
    record(
        "One file of a tree. `hash`: SHA-256 of its content, hexadecimal. `link`: the target of a symbolic link, which"
        " has no other field but its path.",
        path=STRING, size={**INTEGER, "minimum": 0}, hash=STRING, executable=BOOLEAN, link=STRING,
    ),
    "size", "hash", "executable", "link",
)  # fmt: skip
CODE_UPLOAD = record(
    "A tree that was begun: its name, and the hashes of the files that are to be sent. None is missing: commit it.",
    tree=STRING, missing=listed(STRING),
)  # fmt: skip
CODE_TREE = partial(
    record(
        "A tree that jobs of the project can run. The detail has `diff`, from the commit to the tree, or where"
        " `is_diff_cut` its beginning.",
        **ORIGIN, id=INTEGER, files=INTEGER, size_bytes=INTEGER, diff=STRING, is_diff_cut=BOOLEAN,
        created_by=STRING, created_at=TIME, used_at=TIME,
    ),
    "diff", "is_diff_cut",
)  # fmt: skip

CODE_IMPORT = record(
    "A commit of a git repository on its way. `tree` and `commit` are there when it is ready, `reason` when it failed.",
    id=UUID, url=STRING, ref=STRING, state={**STRING, "enum": ["pending", "ready", "failed"]},
    reason=nullable(record("Why there is no tree.", code=STRING, message=STRING)), tree=nullable(STRING),
    commit=STRING, created_by=STRING, created_at=TIME, finished_at=nullable(TIME),
)  # fmt: skip

DATASET = record(
    "A named line of versions. `latest`: the newest version's number, 0 before the first; files and bytes are its.",
    id=UUID, project=STRING, name=STRING, description=STRING, is_shared=BOOLEAN, created_by=STRING,
    created_at=TIME, latest=INTEGER, latest_id=nullable(UUID), files=INTEGER, size_bytes=INTEGER,
    updated_at=nullable(TIME),
)  # fmt: skip
VERSION = record(
    "An immutable version, or a `subset` of one ("
    " for a whole version), whose `parent` is its version. `manifest`: the"
    " hash that names its content; `files_added` and so on: against the parent.",
    id=UUID, dataset_id=UUID, dataset=STRING, project=STRING, number=INTEGER, subset=STRING,
    selection=nullable(
        record(
            "How a subset was chosen: patterns, and how many paths were listed.",
            include=listed(STRING), exclude=listed(STRING), paths=INTEGER,
        ),
    ),
    parent=nullable(INTEGER), manifest=STRING, message=STRING, author=STRING, created_at=TIME, files=INTEGER,
    size_bytes=INTEGER, files_added=INTEGER, files_changed=INTEGER, files_removed=INTEGER,
    tags=listed(STRING),
)  # fmt: skip
VERSION_FILE = record(
    "A file or directory of a version; for a directory, files and bytes of all below it.",
    name=STRING, path=STRING, kind={**STRING, "enum": ["file", "executable", "link", "directory"]},
    files=INTEGER, size_bytes=INTEGER, sha256=nullable(STRING),
)  # fmt: skip
VERSION_DIFF = record(
    "What differs between two versions. The lists end at the limit; the counts do not.",
    before=INTEGER, after=INTEGER,
    counts=record("Paths of each sort.", added=INTEGER, removed=INTEGER, changed=INTEGER),
    added=listed(STRING), removed=listed(STRING), changed=listed(STRING),
)  # fmt: skip
VERIFICATION = record(
    "What a check of `files` files found. Damaged content was moved away: sync again to store it anew.",
    files=INTEGER, contents=INTEGER, size_bytes=INTEGER, missing=listed(STRING), damaged=listed(STRING),
    is_intact=BOOLEAN,
)  # fmt: skip
REGISTRATION = record(
    "A directory of the control plane's machine on its way to a version. `reason`: why it failed, or what was left"
    " out.",
    id=UUID, dataset_id=UUID, path=STRING, state={**STRING, "enum": ["pending", "ready", "failed"]},
    reason=nullable(record("What is to be said.", code=STRING, message=STRING)),
    progress=record(
        "Of what is read.", files=INTEGER, total_files=INTEGER, bytes=INTEGER, total_bytes=INTEGER,
    ),
    version=nullable(INTEGER), version_id=nullable(UUID), created_by=STRING, created_at=TIME,
    finished_at=nullable(TIME),
)  # fmt: skip
STATUS = record(
    "`reason` and `message`: why it is in this state. `progress`: of the work under way, in bytes.",
    state=STRING, reason=STRING, message=STRING, progress=nullable(OBJECT),
)  # fmt: skip
VOLUME_USE = record(
    "An unfinished job that mounts the volume. `is_holding`: it has pods.",
    id=UUID, name=STRING, state=STRING, mount_path=STRING, read_only=BOOLEAN, is_holding=BOOLEAN,
)  # fmt: skip
STORAGE_CLASS = record(
    "Where volumes can be. `service_tiers`: MiB/s per TiB by tier, the default first. `cluster`: the Kubernetes cluster"
    " whose own class it is, as its last check found it; null for those of the control plane. `driver`: folder, csi, or"
    " the storage system that has the volumes.",
    name=STRING, description=STRING, driver={**STRING, "enum": ["csi", *drivers()]}, service_tiers=OBJECT,
    cluster=nullable(STRING),
)  # fmt: skip
VOLUME = record(
    "A directory that outlives jobs. States: creating, ready, failed, deleting. `used_bytes`: as last measured;"
    " `is_measured_in_part`: at least that much. `throughput_mib_per_second` is recorded, not enforced.",
    id=UUID, project=STRING, name=STRING, storage_class=STRING, service_tier=STRING,
    throughput_mib_per_second=nullable(INTEGER), access_mode=STRING, size_bytes=INTEGER,
    used_bytes=nullable(INTEGER), files=nullable(INTEGER), measured_at=nullable(TIME),
    is_measured_in_part=BOOLEAN, is_size_enforced=BOOLEAN, origin=nullable(OBJECT),
    keep_last=nullable(INTEGER), keep_days=nullable(INTEGER), snapshot_minutes=nullable(INTEGER),
    next_snapshot_at=nullable(TIME), created_by=STRING, created_at=TIME, status=STATUS, jobs=listed(VOLUME_USE),
)  # fmt: skip
VOLUME_FILE = record(
    "An entry of a directory of a volume.",
    name=STRING, path=STRING, kind={**STRING, "enum": ["file", "directory", "link", "other"]},
    size_bytes=INTEGER, modified_at=TIME,
)  # fmt: skip
SNAPSHOT = record(
    "A volume at one moment. States: pending, ready, failed, deleting. `cause`: request, or the event of the job whose"
    " `progress` at that moment it records. `consistency`: idle (no job had pods with it), quiesced (all had paused)"
    " or crash (as after a power cut). `new_bytes`: of files that the snapshot before does not share.",
    id=UUID, name=STRING, number=INTEGER, project=STRING, volume=STRING, volume_id=nullable(UUID),
    storage_class=STRING, volume_bytes=INTEGER, cause=STRING, job_id=nullable(UUID), job=nullable(STRING),
    attempt=nullable(INTEGER), progress=OBJECT, consistency=nullable(STRING), files=nullable(INTEGER),
    size_bytes=nullable(INTEGER), new_bytes=nullable(INTEGER), created_by=STRING, created_at=TIME,
    ready_at=nullable(TIME), status=STATUS,
)  # fmt: skip
ARTIFACT = record(
    "A directory of a job's output, kept with the job. States: waiting (for the job's end), keeping, ready, failed,"
    " skipped (the job did not succeed). `manifest`: the hash over its files.",
    id=UUID, name=STRING, project=STRING, job_id=UUID, job=STRING, attempt=nullable(INTEGER), path=STRING,
    is_kept_always=BOOLEAN, manifest=nullable(STRING), files=nullable(INTEGER), size_bytes=nullable(INTEGER),
    created_by=STRING, created_at=TIME, ready_at=nullable(TIME), status=STATUS,
)  # fmt: skip
LINEAGE_NODE = record(
    "A thing of a lineage. `kind`: artifact, job, version (of a dataset), snapshot, volume, code, image, environment (a"
    " lock file), parameters or seed. `id`: of its resource, null for what is none. `identity`: the hash, digest or id"
    " of what cannot change; null for what may have changed since.",
    key=STRING, kind=STRING, id=nullable(STRING), name=STRING, project=nullable(STRING),
    identity=nullable(STRING), detail=STRING,
)  # fmt: skip
LINEAGE_EDGE = record(
    "`source` went into `target`, both by key, with the identity that it had. `role`: how, such as a mount path.",
    source=STRING, target=STRING, identity=nullable(STRING), role=STRING,
)  # fmt: skip
LINEAGE = record(
    "What went into `start` and what was made of it, of what the caller may see; the nearest where `is_cut`.",
    start=STRING, nodes=listed(LINEAGE_NODE), edges=listed(LINEAGE_EDGE), is_cut=BOOLEAN,
)  # fmt: skip
CACHE = record(
    "A version at a location. `is_kept`: false for one that goes with the jobs that it was made for. `progress`: bytes"
    " of the version that are there, and `moved_bytes` that this fill brought. `charged_bytes`: its part of contents"
    " that several caches share. `sharing`: how its fill got its large files from the lake, empty while it has got"
    " nothing; small ones are always copied. `expires_at`: when it is removed if no job uses it.",
    id=UUID, dataset_id=UUID, dataset=STRING, project=STRING, version=INTEGER, subset=STRING, version_id=UUID,
    location=STRING, state={**STRING, "enum": ["queued", "filling", "ready", "failed", "evicting"]},
    reason=record("Why it failed.", code=STRING, message=STRING), is_pinned=BOOLEAN, is_kept=BOOLEAN,
    hits=INTEGER,
    progress=record(
        "How far its fill is.", files=INTEGER, total_files=INTEGER, bytes=INTEGER, total_bytes=INTEGER,
        moved_bytes=INTEGER, bytes_per_second=INTEGER, eta_seconds=nullable(INTEGER),
    ),
    charged_bytes=INTEGER, sharing={**STRING, "enum": ["", "reflink", "hard_link", "copy"]},
    created_by=STRING, created_at=TIME, ready_at=nullable(TIME), used_at=TIME, expires_at=nullable(TIME),
)  # fmt: skip
CACHE_LOCATION = record(
    "Where caches of a cluster are. Nodes in one of `node_pools`, or with all of `node_labels`, read from it; one with"
    " neither is of all nodes that no other location of the cluster has. `room_bytes` null: as much as the disk has."
    " `committed_bytes`: of caches and of fills under way. `free_bytes`: what more fits. Caches that no job used for"
    " `unused_days` are removed. In a Kubernetes cluster a location without `project` holds no caches: each project has"
    " a volume there, a location of its own with that `parent`, with a claim of `storage_class` (empty: the cluster's),"
    " `access_mode` and `room_bytes`.",
    name=STRING, cluster=STRING, project=nullable(STRING), parent=nullable(STRING), node_pools=listed(STRING),
    node_labels={"type": "object", "additionalProperties": STRING}, storage_class=STRING,
    access_mode={**STRING, "enum": ["ReadWriteMany", "ReadWriteOnce"]}, room_bytes=nullable(INTEGER),
    used_bytes=INTEGER, committed_bytes=INTEGER, free_bytes=INTEGER, unused_days=INTEGER, caches=INTEGER,
    hits=INTEGER,
)  # fmt: skip
COMPONENTS: dict[str, Schema] = {
    "CodeEntry": CODE_ENTRY,
    "CodeImport": CODE_IMPORT,
    "CodeUpload": CODE_UPLOAD,
    "CodeTree": CODE_TREE,
    "Dataset": DATASET,
    "DatasetVersion": VERSION,
    "DatasetFile": VERSION_FILE,
    "DatasetDiff": VERSION_DIFF,
    "DatasetRegistration": REGISTRATION,
    "DatasetVerification": VERIFICATION,
    "StorageClass": STORAGE_CLASS,
    "Volume": VOLUME,
    "VolumeFile": VOLUME_FILE,
    "Snapshot": SNAPSHOT,
    "Artifact": ARTIFACT,
    "Lineage": LINEAGE,
    "Cache": CACHE,
    "CacheLocation": CACHE_LOCATION,
}
