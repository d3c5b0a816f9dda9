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
    "A tree whose upload has begun: its name, and the hashes of the files to send. If none is missing, commit"
    " the tree.",
    tree=STRING, missing=listed(STRING),
)  # fmt: skip
CODE_TREE = partial(
    record(
        "A tree that jobs of the project can run. The detail has `diff`, from the commit to the tree; only its"
        " beginning if `is_diff_cut`.",
        **ORIGIN, id=INTEGER, files=INTEGER, size_bytes=INTEGER, diff=STRING, is_diff_cut=BOOLEAN,
        created_by=STRING, created_at=TIME, used_at=TIME,
    ),
    "diff", "is_diff_cut",
)  # fmt: skip

CODE_IMPORT = record(
    "An import of a commit from a git repository. `tree` and `commit` are set when it is ready, `reason` when"
    " it failed.",
    id=UUID, url=STRING, ref=STRING, state={**STRING, "enum": ["pending", "ready", "failed"]},
    reason=nullable(record("Why the import failed.", code=STRING, message=STRING)), tree=nullable(STRING),
    commit=STRING, created_by=STRING, created_at=TIME, finished_at=nullable(TIME),
)  # fmt: skip

DATASET = record(
    "A named sequence of versions. `latest`: the number of the newest version, 0 before the first; `files` and"
    " `size_bytes` are those of the newest version.",
    id=UUID, project=STRING, name=STRING, description=STRING, is_shared=BOOLEAN, created_by=STRING,
    created_at=TIME, latest=INTEGER, latest_id=nullable(UUID), files=INTEGER, size_bytes=INTEGER,
    updated_at=nullable(TIME),
)  # fmt: skip
VERSION = record(
    "An immutable version or, if `subset` is not empty, a subset of one, whose `parent` is that version."
    " `manifest`: the hash that identifies the content; `files_added`, `files_changed` and `files_removed`:"
    " compared with the parent.",
    id=UUID, dataset_id=UUID, dataset=STRING, project=STRING, number=INTEGER, subset=STRING,
    selection=nullable(
        record(
            "How a subset was selected: patterns, and the number of listed paths.",
            include=listed(STRING), exclude=listed(STRING), paths=INTEGER,
        ),
    ),
    parent=nullable(INTEGER), manifest=STRING, message=STRING, author=STRING, created_at=TIME, files=INTEGER,
    size_bytes=INTEGER, files_added=INTEGER, files_changed=INTEGER, files_removed=INTEGER,
    tags=listed(STRING),
)  # fmt: skip
VERSION_FILE = record(
    "A file or directory of a version. For a directory, `files` and `size_bytes` are totals of everything below"
    " it.",
    name=STRING, path=STRING, kind={**STRING, "enum": ["file", "executable", "link", "directory"]},
    files=INTEGER, size_bytes=INTEGER, sha256=nullable(STRING),
)  # fmt: skip
VERSION_DIFF = record(
    "The differences between two versions. The lists are cut at the limit, the counts are complete.",
    before=INTEGER, after=INTEGER,
    counts=record("Number of paths of each kind.", added=INTEGER, removed=INTEGER, changed=INTEGER),
    added=listed(STRING), removed=listed(STRING), changed=listed(STRING),
)  # fmt: skip
VERIFICATION = record(
    "The result of checking `files` files. Damaged content was moved away from the lake, whose content `is_intact`"
    " otherwise; `repair` is what stores it again, empty if all is intact. `damaged_caches`: locations whose cache of"
    " the version has a damaged file; each is out of use until it is filled again. `unread_caches`: locations whose"
    " cache of the version was not read, because it is on a volume or its directory cannot be used.",
    files=INTEGER, contents=INTEGER, size_bytes=INTEGER, missing=listed(STRING), damaged=listed(STRING),
    damaged_caches=listed(STRING), unread_caches=listed(STRING), is_intact=BOOLEAN, repair=STRING,
)  # fmt: skip
REGISTRATION = record(
    "The registration of a directory of the control plane's machine as a version. `reason`: why it failed, or"
    " which files were left out.",
    id=UUID, dataset_id=UUID, path=STRING, state={**STRING, "enum": ["pending", "ready", "failed"]},
    reason=nullable(record("Why it failed, or which files were left out.", code=STRING, message=STRING)),
    progress=record(
        "Files and bytes read so far, and in total.",
        files=INTEGER, total_files=INTEGER, bytes=INTEGER, total_bytes=INTEGER,
    ),
    version=nullable(INTEGER), version_id=nullable(UUID), created_by=STRING, created_at=TIME,
    finished_at=nullable(TIME),
)  # fmt: skip
STATUS = record(
    "`reason` and `message`: why it is in this state. `progress`: that of the running operation, in bytes.",
    state=STRING, reason=STRING, message=STRING, progress=nullable(OBJECT),
)  # fmt: skip
VOLUME_USE = record(
    "An unfinished job that mounts the volume. `is_holding`: it has pods.",
    id=UUID, name=STRING, state=STRING, mount_path=STRING, read_only=BOOLEAN, is_holding=BOOLEAN,
)  # fmt: skip
STORAGE_CLASS = record(
    "A storage class for volumes. `service_tiers`: MiB/s per TiB by tier, the default first. `cluster`: the"
    " Kubernetes cluster to which the class belongs, as of its last check; null for the control plane's own."
    " `driver`: folder, csi, or the storage system that has the volumes.",
    name=STRING, description=STRING, driver={**STRING, "enum": ["csi", *drivers()]}, service_tiers=OBJECT,
    cluster=nullable(STRING),
)  # fmt: skip
VOLUME = record(
    "A directory that outlives jobs. States: creating, ready, failed, deleting. `used_bytes`: as last measured,"
    " a lower bound if `is_measured_in_part`. `throughput_mib_per_second` is recorded, not enforced."
    " `is_size_enforced`: null for a claim on Kubernetes, where it depends on the driver of the storage class.",
    id=UUID, project=STRING, name=STRING, storage_class=STRING, service_tier=STRING,
    throughput_mib_per_second=nullable(INTEGER), access_mode=STRING, size_bytes=INTEGER,
    used_bytes=nullable(INTEGER), files=nullable(INTEGER), measured_at=nullable(TIME),
    is_measured_in_part=BOOLEAN, is_size_enforced=nullable(BOOLEAN), origin=nullable(OBJECT),
    keep_last=nullable(INTEGER), keep_days=nullable(INTEGER), snapshot_minutes=nullable(INTEGER),
    next_snapshot_at=nullable(TIME),
    snapshots_due_for=nullable(STRING), created_by=STRING, created_at=TIME, status=STATUS, jobs=listed(VOLUME_USE),
)  # fmt: skip
VOLUME_FILE = record(
    "An entry of a volume's directory.",
    name=STRING, path=STRING, kind={**STRING, "enum": ["file", "directory", "link", "other"]},
    size_bytes=INTEGER, modified_at=TIME,
)  # fmt: skip
SNAPSHOT = record(
    "The state of a volume at one moment. States: pending, ready, failed, deleting. `causes`: request, schedule, or"
    " the events of the job whose `progress` at that moment is recorded; `cause`: the first. `consistency`: idle (no"
    " pod mounted the volume), quiesced (all programs had paused) or crash (as after a power cut). `new_bytes`: the"
    " size of files not shared with the previous snapshot.",
    id=UUID, name=STRING, number=INTEGER, project=STRING, volume=STRING, volume_id=nullable(UUID),
    storage_class=STRING, volume_bytes=INTEGER, cause=STRING, causes=listed(STRING), job_id=nullable(UUID),
    job=nullable(STRING), attempt=nullable(INTEGER), progress=OBJECT, consistency=nullable(STRING),
    files=nullable(INTEGER), size_bytes=nullable(INTEGER), new_bytes=nullable(INTEGER), created_by=STRING,
    created_at=TIME, ready_at=nullable(TIME), status=STATUS,
)  # fmt: skip
ARTIFACT = record(
    "A directory of a job's output, kept with the job. States: waiting (for the job's end), keeping, ready, failed,"
    " skipped (the job did not succeed). `manifest`: the hash over its files.",
    id=UUID, name=STRING, project=STRING, job_id=UUID, job=STRING, attempt=nullable(INTEGER), path=STRING,
    is_kept_always=BOOLEAN, manifest=nullable(STRING), files=nullable(INTEGER), size_bytes=nullable(INTEGER),
    created_by=STRING, created_at=TIME, ready_at=nullable(TIME), status=STATUS,
)  # fmt: skip
LINEAGE_NODE = record(
    "A node of a lineage graph. `kind`: artifact, job, version (of a dataset), snapshot, volume, code, image,"
    " environment (a lock file), parameters or seed. `id`: the id of its REST resource, null if it has none."
    " `identity`: the hash, digest or id of content that cannot change; null if the content may have changed"
    " since.",
    key=STRING, kind=STRING, id=nullable(STRING), name=STRING, project=nullable(STRING),
    identity=nullable(STRING), detail=STRING,
)  # fmt: skip
LINEAGE_EDGE = record(
    "An edge: `source` was an input of `target`, both given by key. `identity`: that of the input at that time."
    " `role`: how it was used, such as a mount path.",
    source=STRING, target=STRING, identity=nullable(STRING), role=STRING,
)  # fmt: skip
LINEAGE = record(
    "The inputs of `start` and what was made from it, as far as the caller may see them; only the nearest nodes"
    " if `is_cut`.",
    start=STRING, nodes=listed(LINEAGE_NODE), edges=listed(LINEAGE_EDGE), is_cut=BOOLEAN,
)  # fmt: skip
CACHE = record(
    "A version at a cache location. `is_kept`: false if it is removed after the jobs for which it was made."
    " `progress`: bytes of the version that are present, and `moved_bytes` that this fill copied."
    " `charged_bytes`: its size, with contents shared by several caches divided among them. `sharing`: how the"
    " fill got large files from the lake, empty before the first; small ones are always copied. `expires_at`:"
    " when it is removed if no job uses it.",
    id=UUID, dataset_id=UUID, dataset=STRING, project=STRING, version=INTEGER, subset=STRING, version_id=UUID,
    location=STRING, state={**STRING, "enum": ["queued", "filling", "ready", "failed", "evicting"]},
    reason=record("Why it failed.", code=STRING, message=STRING), is_pinned=BOOLEAN, is_kept=BOOLEAN,
    hits=INTEGER,
    progress=record(
        "Progress of the fill.", files=INTEGER, total_files=INTEGER, bytes=INTEGER, total_bytes=INTEGER,
        moved_bytes=INTEGER, bytes_per_second=INTEGER, eta_seconds=nullable(INTEGER),
    ),
    charged_bytes=INTEGER, sharing={**STRING, "enum": ["", "reflink", "hard_link", "copy"]},
    created_by=STRING, created_at=TIME, ready_at=nullable(TIME), used_at=TIME, expires_at=nullable(TIME),
)  # fmt: skip
CACHE_LOCATION = record(
    "A place for caches of a cluster. Nodes in one of `node_pools`, or with all of `node_labels`, read from it;"
    " a location with neither serves all nodes that no other location of the cluster serves. `room_bytes`: its"
    " size limit, null if only the disk limits it. `committed_bytes`: used by caches and promised to running"
    " fills. `free_bytes`: still available. Caches that no job used for `unused_days` are removed. In a"
    " Kubernetes cluster a location without `project` holds no caches: each project has a volume there, which"
    " is a location of its own with that `parent` and a claim of `storage_class` (empty: the cluster's),"
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
