"""JSON schemas of the control plane's API responses: the components of the OpenAPI document, and the names that
`?fields=` accepts. Tests validate every response against them. Other apps declare theirs in `api.schemas`."""

from controlplane.api.json_schema import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    TIME,
    UUID,
    Schema,
    listed,
    nullable,
    partial,
    record,
    ref,
)

PROBLEM = record(
    "Why a request was refused, and what to do (RFC 9457).",
    type=STRING, title=STRING, status=INTEGER, code=STRING, detail=STRING,
    errors=listed(record("One refused field.", pointer=STRING, code=STRING, detail=STRING)),
)  # fmt: skip

MEMBER = record("A user's role in a project.", user=STRING, role=STRING)
PROJECT_STATUS = record(
    "GPUs that the jobs of the project hold and wait for. `recent_usage`: its time-decayed share of the"
" cluster's use, which lowers its share of the GPUs above quotas; null where past use does not count.",
    allocated_gpus=NUMBER, in_quota_gpus=NUMBER, over_quota_gpus=NUMBER, fair_share_gpus=NUMBER,
    requested_gpus=NUMBER, running_jobs=INTEGER, queued_jobs=INTEGER, namespace=STRING,
    recent_usage=nullable(NUMBER),
)  # fmt: skip
PROJECT = partial(
    record(
        "A team with a guaranteed quota.",
        name=STRING, description=STRING, gpu_quota=NUMBER, over_quota_weight=nullable(NUMBER),
        gpu_limit=nullable(NUMBER), priority=INTEGER, department=nullable(STRING), cluster=STRING,
        node_pools={"type": "object", "additionalProperties": listed(STRING)},
        interactive_max_seconds=nullable(INTEGER), interactive_idle_seconds=nullable(INTEGER),
        created_at=TIME, members=listed(ref("Member")), status=ref("ProjectStatus"), warnings=listed(STRING),
    ),
    # Included in responses to writes.
    "warnings",
)  # fmt: skip
DEPARTMENT = record(
    "Projects that share a quota of their own.",
    name=STRING, gpu_quota=NUMBER, over_quota_weight=nullable(NUMBER), gpu_limit=nullable(NUMBER),
    priority=INTEGER, created_at=TIME, projects=listed(STRING),
)  # fmt: skip
PROJECT_DELETION = record(
    "What is deleted with the project: jobs with their logs, working directories with checkpoints and, if"
" its cluster has namespaces, its namespace with all contents. `is_reachable`: whether that cluster"
" answers; the namespace remains until it does.",
    project=STRING, cluster=STRING, is_reachable=BOOLEAN, namespace=nullable(STRING),
    working_directories=INTEGER, finished_jobs=INTEGER, unfinished_jobs=INTEGER, members=INTEGER,
)  # fmt: skip

CLUSTER_CHECK = record(
    "The result of one check: `outcome` is ok, warning or failed; `without_it` says what does not work"
" unless it is ok.",
    name=STRING, outcome=STRING, message=STRING, without_it=STRING,
)  # fmt: skip
CLUSTER_STATUS = record(
    "State of the cluster: checking, attached or refused. Admins see the checks.",
    state=STRING, is_checking=BOOLEAN, checked_at=nullable(TIME), checks=listed(ref("ClusterCheck")),
    is_reachable=BOOLEAN, unreachable_message=STRING,
)  # fmt: skip
CLUSTER = record(
    "An engine with nodes. Admins see its settings; its credentials are never shown. `usage_half_life_hours`: past use"
    " lowers a project's part of the GPUs above quotas, use so many hours old counting half; 0: never, null: as"
    " TRAINYARD_USAGE_HALF_LIFE_HOURS says.",
    name=STRING, engine=STRING, scheduler=STRING, settings=nullable(OBJECT), status=ref("ClusterStatus"),
    created_at=TIME, nodes=INTEGER, nodes_ready=INTEGER, gpus=INTEGER, usage_half_life_hours=nullable(INTEGER),
)  # fmt: skip
NODE_POOL = record(
    "A named group of nodes. `is_spot`: their provider may withdraw them at any time.",
    name=STRING, cluster=STRING, is_spot=BOOLEAN, nodes=listed(STRING),
)  # fmt: skip
DEVICE = record(
    "One GPU. `is_foreign`: a pod outside Trainyard holds it.",
    index=INTEGER, uuid=STRING, model=STRING, memory_mib=INTEGER, allocated=NUMBER,
    utilization=nullable(NUMBER), memory_used_mib=nullable(INTEGER), is_foreign=BOOLEAN,
)  # fmt: skip
NODE = partial(
    record(
        "A machine that runs pods. The detail lists its pods. `is_reachable`: whether its cluster answers; if"
" not, all fields have their last known values. `seen_at`: when the node was last seen, if it is gone"
" or its cluster does not answer; otherwise when a field last changed. `is_spot`: its provider may"
" withdraw it at any time; `interruption_at`: when it will be withdrawn, by an interruption notice.",
        name=STRING, cluster=STRING, node_pool=nullable(STRING), is_ready=BOOLEAN, is_reachable=BOOLEAN,
        message=STRING, is_cordoned=BOOLEAN, is_spot=BOOLEAN, interruption_at=nullable(TIME), cpus=NUMBER,
        memory_mib=INTEGER, extra_resources={"type": "object", "additionalProperties": INTEGER},
        labels=OBJECT, seen_at=TIME, gpus=INTEGER, allocated_gpus=NUMBER, gpu_utilization=nullable(NUMBER),
        devices=listed(ref("Device")), pods=listed(OBJECT),
    ),
    "pods",
)  # fmt: skip
_MOVED = record("A job on the node.", id=UUID, name=STRING, project=STRING, user=STRING)
DRAIN = record(
    "The jobs that a drain moves, and those that stay until they end.",
    node=STRING, moves=listed(_MOVED), stays=listed(_MOVED),
)  # fmt: skip

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

SERIES_LIST = record(
    "Series over a time range.",
    **{"metric": STRING, "by": STRING, "from": TIME, "to": TIME, "series": listed(ref("Series"))},
)
SERIES = record(
    "The series of one subject. `step_seconds` 0: each value holds from its time on.",
    subject=STRING, step_seconds=INTEGER,
    points=listed(record("A point.", at=TIME, min=NUMBER, max=NUMBER, mean=NUMBER)),
)  # fmt: skip

WHOAMI = record(
    "The caller.", username=STRING, email=STRING, is_admin=BOOLEAN, is_read_only=BOOLEAN,
    roles={"type": "object", "additionalProperties": STRING},
)  # fmt: skip
USER = record(
    "A person or a service.",
    username=STRING, email=STRING, is_admin=BOOLEAN, is_active=BOOLEAN, created_at=TIME,
)  # fmt: skip
TOKEN = partial(
    record(
        "An API token. `token`, the secret, is only in the response that created it.",
        id=INTEGER, user=STRING, name=STRING, prefix=STRING, is_read_only=BOOLEAN, created_at=TIME,
        expires_at=TIME, last_used_at=nullable(TIME), token=STRING,
    ),
    "token",
)  # fmt: skip
EVENT = record(
    "Something that happened.",
    seq=INTEGER, at=TIME, kind=STRING, project=nullable(STRING), job=nullable(UUID), node=nullable(STRING),
    actor=STRING, reason=STRING, message=STRING, data=OBJECT,
)  # fmt: skip
AUDIT_ENTRY = record(
    "Who did what, with the values before and after.",
    id=INTEGER, at=TIME, actor=STRING, token_prefix=STRING, address=STRING, request_id=STRING, verb=STRING,
    object_type=STRING, object_name=STRING, before=OBJECT, after=OBJECT,
)  # fmt: skip

COMPONENTS: dict[str, Schema] = {
    "Problem": PROBLEM,
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
    "SeriesList": SERIES_LIST,
    "Series": SERIES,
    "Whoami": WHOAMI,
    "User": USER,
    "Token": TOKEN,
    "Event": EVENT,
    "AuditEntry": AUDIT_ENTRY,
}
