"""OpenAPI components of artifacts and lineage."""

from controlplane.api.bodies import Schema
from controlplane.api.json_schema import BOOLEAN, INTEGER, STRING, TIME, UUID, listed, nullable, record
from datasets.api.volume_schemas import STATUS

ARTIFACT = record(
    "A directory of a job's output, kept with the job. States: waiting (for the job's end), keeping, ready, failed,"
    " skipped (the job did not succeed). `manifest`: the hash over its files.",
    id=UUID,
    name=STRING,
    project=STRING,
    job_id=UUID,
    job=STRING,
    attempt=nullable(INTEGER),
    path=STRING,
    is_kept_always=BOOLEAN,
    manifest=nullable(STRING),
    files=nullable(INTEGER),
    size_bytes=nullable(INTEGER),
    created_by=STRING,
    created_at=TIME,
    ready_at=nullable(TIME),
    status=STATUS,
)
NODE = record(
    "A thing of a lineage. `kind`: artifact, job, version (of a dataset), snapshot, volume, code, image, environment (a"
    " lock file), parameters or seed. `id`: of its resource, null for what is none. `identity`: the hash, digest or id"
    " of what cannot change; null for what may have changed since.",
    key=STRING,
    kind=STRING,
    id=nullable(STRING),
    name=STRING,
    project=nullable(STRING),
    identity=nullable(STRING),
    detail=STRING,
)
EDGE = record(
    "`source` went into `target`, both by key, with the identity that it had. `role`: how, such as a mount path.",
    source=STRING,
    target=STRING,
    identity=nullable(STRING),
    role=STRING,
)
LINEAGE = record(
    "What went into `start` and what was made of it, of what the caller may see; the nearest where `is_cut`.",
    start=STRING,
    nodes=listed(NODE),
    edges=listed(EDGE),
    is_cut=BOOLEAN,
)
COMPONENTS: dict[str, Schema] = {"Artifact": ARTIFACT, "Lineage": LINEAGE}
