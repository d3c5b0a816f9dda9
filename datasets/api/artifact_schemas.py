"""Components of the OpenAPI document about artifacts."""

from controlplane.api.bodies import Schema
from controlplane.api.json_schema import BOOLEAN, INTEGER, STRING, TIME, UUID, nullable, record
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
COMPONENTS: dict[str, Schema] = {"Artifact": ARTIFACT}
