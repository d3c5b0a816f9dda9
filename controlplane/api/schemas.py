"""JSON schemas of the API's answers, as plain data: the components of the OpenAPI document, and the field names that
`?fields=` accepts. Tests check every answer against them.
"""

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
UUID: Schema = {"type": "string", "format": "uuid"}
OBJECT: Schema = {"type": "object", "additionalProperties": True}


def ref(component: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{component}"}


def nullable(schema: Schema) -> Schema:
    """Return the schema, or null."""
    kind = schema.get("type")
    return (
        {**schema, "type": [kind, "null"]} if isinstance(kind, str) else {"anyOf": [schema, {"type": "null"}]}
    )


def listed(items: Schema) -> Schema:
    """Return a list."""
    return {"type": "array", "items": items}


def record(about: str, **properties: Schema) -> Schema:
    """Return an object with exactly these fields."""
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def partial(schema: Schema, *optional: str) -> Schema:
    """Return the record with these fields optional."""
    return schema | {"required": [name for name in schema["required"] if name not in optional]}


PROBLEM = record(
    "Why a request was refused, and what to do (RFC 9457).",
    type=STRING,
    title=STRING,
    status=INTEGER,
    code=STRING,
    detail=STRING,
    errors=listed(record("One refused field.", pointer=STRING, code=STRING, detail=STRING)),
)

REASON = record("Why the job is in its state.", code=STRING, message=STRING, details=OBJECT)
POD = record(
    "One process group of an attempt.",
    name=STRING,
    attempt=INTEGER,
    rank=INTEGER,
    role=STRING,
    state=STRING,
    reason=STRING,
    message=STRING,
    node=STRING,
    devices=listed(record("A share of one GPU.", index=INTEGER, share=NUMBER)),
    exit_code=nullable(INTEGER),
    started_at=nullable(TIME),
    finished_at=nullable(TIME),
    gpu_utilization=nullable(NUMBER),
    gpu_memory_mib=nullable(INTEGER),
)
JOB_STATUS = record(
    "Where the job stands. `is_reachable`: whether its cluster answers; while it does not, what is said of a job that"
    " has not ended is what was last seen.",
    state=STRING,
    is_reachable=BOOLEAN,
    reason=ref("Reason"),
    attempt=INTEGER,
    allocated_gpus=NUMBER,
    workers=nullable(INTEGER),
    queue_position=nullable(INTEGER),
    start_estimate=nullable(OBJECT),
    started_at=nullable(TIME),
    finished_at=nullable(TIME),
    runtime_seconds=nullable(INTEGER),
    exit_code=nullable(INTEGER),
    gpu_utilization=nullable(NUMBER),
    service_urls=listed({"type": "string", "format": "uri"}),
    progress=OBJECT,
    pods=listed(ref("Pod")),
)
_SPEC: dict[str, Schema] = {
    "name": STRING,
    "kind": STRING,
    "image": STRING,
    "command": listed(STRING),
    "args": listed(STRING),
    "working_dir": nullable(STRING),
    "env": {"type": "object", "additionalProperties": STRING},
    "secret_env": {
        "type": "object",
        "additionalProperties": record(
            "A key of a secret in the project's namespace.", secret=STRING, key=STRING
        ),
    },
    "image_pull_secrets": listed(STRING),
    "extra_resources": {"type": "object", "additionalProperties": STRING},
    "gpus": nullable(NUMBER),
    "gpu_memory_mib": nullable(INTEGER),
    "cpus": NUMBER,
    "memory_mib": INTEGER,
    "workers": INTEGER,
    "min_workers": nullable(INTEGER),
    "max_workers": nullable(INTEGER),
    "preemptible": BOOLEAN,
    "priority": INTEGER,
    "node_pool": nullable(STRING),
    "compute_template": nullable(STRING),
    "large_shm": BOOLEAN,
    "max_runtime_seconds": nullable(INTEGER),
    "expected_runtime_seconds": nullable(INTEGER),
    "retries": INTEGER,
    "ttl_seconds_after_finished": nullable(INTEGER),
    "labels": {"type": "object", "additionalProperties": STRING},
    "ports": listed(OBJECT),
    "volumes": listed(OBJECT),
    "datasets": listed(OBJECT),
    "snapshot_on": listed(STRING),
}
JOB_SPEC = record("What was asked for, with defaults filled in.", **_SPEC)
_ASKED = {"extra_resources": {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}}
JOB_SUBMIT = {**record("A job to submit.", **_SPEC | _ASKED), "required": ["name", "kind"]}
JOB = partial(
    record(
        "A job. Lists show its pods while it holds GPUs; the detail always shows those of the attempt that stands.",
        **_SPEC,
        id=UUID,
        project=STRING,
        user=STRING,
        created_at=TIME,
        status=ref("JobStatus"),
        warnings=listed(STRING),
    ),
    "warnings",  # of a submission, where there is something odd about it
)
SCALE_OPERATION = record(
    "A change of the number of workers of an elastic job: `pending`, `running` (the workers were told), `succeeded`, "
    "`rolled_back` or `failed`. `cause` is `user`, `recovery`, `growth` or `reclaim`. Steps lost and repeated and the "
    "pause are what the workers measured at that switch; null for a job that waited. In the answer to a dry run `id` "
    "and all moments are null and `state` is `planned`.",
    id=nullable(UUID),
    **{"from": INTEGER},
    to=INTEGER,
    state=STRING,
    cause=STRING,
    requested_by=STRING,
    message=STRING,
    joining=listed(INTEGER),
    leaving=listed(INTEGER),
    generation=nullable(INTEGER),
    created_at=nullable(TIME),
    deadline=nullable(TIME),
    published_at=nullable(TIME),
    finished_at=nullable(TIME),
    lost_steps=nullable(INTEGER),
    repeated_steps=nullable(INTEGER),
    pause_seconds=nullable(NUMBER),
)
EXPLANATION = record(
    "Why a job is where it is, in numbers. `is_reachable`: whether its cluster answers.",
    state=STRING,
    is_reachable=BOOLEAN,
    reason=ref("Reason"),
    shortage=nullable(OBJECT),
    queue_position=nullable(INTEGER),
    ahead=listed(OBJECT),
    holders=listed(OBJECT),
    would_start_if=listed(OBJECT),
    start_estimate=nullable(OBJECT),
)
LOG_PAGE = record(
    "Numbered lines of one pod. Go on at next_offset until complete.",
    lines=listed(record("A line.", n=INTEGER, time=TIME, stream=STRING, text=STRING, partial=BOOLEAN)),
    next_offset=INTEGER,
    complete=BOOLEAN,
    gaps=listed(record("Output is missing here.", after=INTEGER, time=TIME, message=STRING)),
)
JOB_METRICS = record(
    "What the job uses now, and the numbers it reported last.",
    gpu_utilization=nullable(NUMBER),
    progress=OBJECT,
    pods=listed(
        record("One pod.", rank=INTEGER, gpu_utilization=nullable(NUMBER), gpu_memory_mib=nullable(INTEGER))
    ),
)

MEMBER = record("A user's role in a project.", user=STRING, role=STRING)
PROJECT_STATUS = record(
    "What the project holds and waits for.",
    allocated_gpus=NUMBER,
    in_quota_gpus=NUMBER,
    over_quota_gpus=NUMBER,
    fair_share_gpus=NUMBER,
    requested_gpus=NUMBER,
    running_jobs=INTEGER,
    queued_jobs=INTEGER,
    namespace=STRING,
)
PROJECT = partial(
    record(
        "A team with a guaranteed quota.",
        name=STRING,
        description=STRING,
        gpu_quota=NUMBER,
        over_quota_weight=nullable(NUMBER),
        gpu_limit=nullable(NUMBER),
        priority=INTEGER,
        department=nullable(STRING),
        cluster=STRING,
        node_pools={"type": "object", "additionalProperties": listed(STRING)},
        interactive_max_seconds=nullable(INTEGER),
        interactive_idle_seconds=nullable(INTEGER),
        created_at=TIME,
        members=listed(ref("Member")),
        status=ref("ProjectStatus"),
        warnings=listed(STRING),
    ),
    "warnings",  # answers to writes have them
)
DEPARTMENT = record(
    "Projects that share a quota of their own.",
    name=STRING,
    gpu_quota=NUMBER,
    over_quota_weight=nullable(NUMBER),
    gpu_limit=nullable(NUMBER),
    priority=INTEGER,
    created_at=TIME,
    projects=listed(STRING),
)
PROJECT_DELETION = record(
    "What deleting the project takes along: jobs with their logs, working directories with checkpoints, and where its"
    " cluster has namespaces its own with everything in it. `is_reachable`: whether that cluster answers; the namespace"
    " stays until it does.",
    project=STRING,
    cluster=STRING,
    is_reachable=BOOLEAN,
    namespace=nullable(STRING),
    working_directories=INTEGER,
    finished_jobs=INTEGER,
    unfinished_jobs=INTEGER,
    members=INTEGER,
)

CLUSTER_CHECK = record(
    "One thing that was looked at: `outcome` is ok, warning or failed; `without_it` is what does not work then.",
    name=STRING,
    outcome=STRING,
    message=STRING,
    without_it=STRING,
)
CLUSTER_STATUS = record(
    "Whether the cluster is worked for: `state` is checking, attached or refused. Admins see the checks.",
    state=STRING,
    is_checking=BOOLEAN,
    checked_at=nullable(TIME),
    checks=listed(ref("ClusterCheck")),
    is_reachable=BOOLEAN,
    unreachable_message=STRING,
)
CLUSTER = record(
    "An engine with nodes. Admins see its settings; its credentials are never shown.",
    name=STRING,
    engine=STRING,
    scheduler=STRING,
    settings=nullable(OBJECT),
    status=ref("ClusterStatus"),
    created_at=TIME,
    nodes=INTEGER,
    nodes_ready=INTEGER,
    gpus=INTEGER,
)
NODE_POOL = record("A named group of nodes.", name=STRING, cluster=STRING, nodes=listed(STRING))
DEVICE = record(
    "One GPU. `is_foreign`: a pod of somebody else in the engine's cluster holds it.",
    index=INTEGER,
    uuid=STRING,
    model=STRING,
    memory_mib=INTEGER,
    allocated=NUMBER,
    utilization=nullable(NUMBER),
    memory_used_mib=nullable(INTEGER),
    is_foreign=BOOLEAN,
)
NODE = partial(
    record(
        "A machine that runs pods. The detail lists its pods. `is_reachable`: whether its cluster answers; while it"
        " does not, all that is said of the node is what was last seen. `seen_at`: until when a node was seen that is"
        " gone or whose cluster does not answer; of others when something about it last changed.",
        name=STRING,
        cluster=STRING,
        node_pool=nullable(STRING),
        is_ready=BOOLEAN,
        is_reachable=BOOLEAN,
        message=STRING,
        is_cordoned=BOOLEAN,
        cpus=NUMBER,
        memory_mib=INTEGER,
        extra_resources={"type": "object", "additionalProperties": INTEGER},
        labels=OBJECT,
        seen_at=TIME,
        gpus=INTEGER,
        allocated_gpus=NUMBER,
        gpu_utilization=nullable(NUMBER),
        devices=listed(ref("Device")),
        pods=listed(OBJECT),
    ),
    "pods",
)
_MOVED = record("A job on the node.", id=UUID, name=STRING, project=STRING, user=STRING)
DRAIN = record(
    "What a drain moves, and what stays until it ends.",
    node=STRING,
    moves=listed(_MOVED),
    stays=listed(_MOVED),
)

_OVERVIEW_FIELDS: dict[str, Schema] = {
    "nodes": INTEGER,
    "nodes_ready": INTEGER,
    "gpus": INTEGER,
    "gpus_allocated": NUMBER,
    "gpus_idle_allocated": NUMBER,
    "gpu_utilization": nullable(NUMBER),
    "gpu_memory_utilization": nullable(NUMBER),
    "jobs_running": INTEGER,
    "jobs_queued": INTEGER,
    "projects": listed(OBJECT),
    "running": listed(OBJECT),
    "queued": listed(OBJECT),
    "node_list": listed(OBJECT),
    "seq": INTEGER,
}
OVERVIEW = record("The cluster in numbers, as of event `seq`.", **_OVERVIEW_FIELDS) | {
    "additionalProperties": True
}

IMAGES = record(
    "Names that a job's `image` can have; more may run on clusters that pull from registries. One page.",
    results=listed(record("An image.", name=STRING)),
    next=nullable(STRING),
    previous=nullable(STRING),
)
SERIES_LIST = record(
    "Lines over a range.",
    **{"metric": STRING, "by": STRING, "from": TIME, "to": TIME, "series": listed(ref("Series"))},
)
SERIES = record(
    "One subject's line; step_seconds 0: each value holds from its moment on.",
    subject=STRING,
    step_seconds=INTEGER,
    points=listed(record("A point.", at=TIME, min=NUMBER, max=NUMBER, mean=NUMBER)),
)

WHOAMI = record(
    "The caller.",
    username=STRING,
    email=STRING,
    is_admin=BOOLEAN,
    is_read_only=BOOLEAN,
    roles={"type": "object", "additionalProperties": STRING},
)
USER = record(
    "A person or a service.",
    username=STRING,
    email=STRING,
    is_admin=BOOLEAN,
    is_active=BOOLEAN,
    created_at=TIME,
)
TOKEN = partial(
    record(
        "An API token. `token`, the secret, is in the answer that made it and never again.",
        id=INTEGER,
        user=STRING,
        name=STRING,
        prefix=STRING,
        is_read_only=BOOLEAN,
        created_at=TIME,
        expires_at=TIME,
        last_used_at=nullable(TIME),
        token=STRING,
    ),
    "token",
)
EVENT = record(
    "Something that happened.",
    seq=INTEGER,
    at=TIME,
    kind=STRING,
    project=nullable(STRING),
    job=nullable(UUID),
    node=nullable(STRING),
    actor=STRING,
    reason=STRING,
    message=STRING,
    data=OBJECT,
)
AUDIT_ENTRY = record(
    "Who did what, with the values before and after.",
    id=INTEGER,
    at=TIME,
    actor=STRING,
    token_prefix=STRING,
    address=STRING,
    request_id=STRING,
    verb=STRING,
    object_type=STRING,
    object_name=STRING,
    before=OBJECT,
    after=OBJECT,
)

COMPONENTS: dict[str, Schema] = {
    "Problem": PROBLEM,
    "Reason": REASON,
    "Pod": POD,
    "JobStatus": JOB_STATUS,
    "JobSpec": JOB_SPEC,
    "ScaleOperation": SCALE_OPERATION,
    "JobSubmit": JOB_SUBMIT,
    "Job": JOB,
    "Explanation": EXPLANATION,
    "LogPage": LOG_PAGE,
    "JobMetrics": JOB_METRICS,
    "Member": MEMBER,
    "ProjectStatus": PROJECT_STATUS,
    "Project": PROJECT,
    "Department": DEPARTMENT,
    "ProjectDeletion": PROJECT_DELETION,
    "ClusterCheck": CLUSTER_CHECK,
    "ClusterStatus": CLUSTER_STATUS,
    "Cluster": CLUSTER,
    "NodePool": NODE_POOL,
    "Device": DEVICE,
    "Node": NODE,
    "Drain": DRAIN,
    "Overview": OVERVIEW,
    "Images": IMAGES,
    "SeriesList": SERIES_LIST,
    "Series": SERIES,
    "Whoami": WHOAMI,
    "User": USER,
    "Token": TOKEN,
    "Event": EVENT,
    "AuditEntry": AUDIT_ENTRY,
}
