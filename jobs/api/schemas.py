"""JSON schemas of the API's answers about jobs."""

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
from jobs.fields.declared import DECLARED

REASON = record("Why the job is in its state.", code=STRING, message=STRING, details=OBJECT)
POD = record(
    "One process group of an attempt.",
    name=STRING, attempt=INTEGER, rank=INTEGER, role=STRING, state=STRING, reason=STRING, message=STRING,
    node=STRING, devices=listed(record("A share of one GPU.", index=INTEGER, share=NUMBER)),
    exit_code=nullable(INTEGER), started_at=nullable(TIME), finished_at=nullable(TIME),
    gpu_utilization=nullable(NUMBER), gpu_memory_mib=nullable(INTEGER),
)  # fmt: skip
START_ESTIMATE = nullable(
    record(
        "When a queued job is expected to start. `latest` is null if the start lies beyond the simulated time.",
        earliest=TIME, latest=nullable(TIME),
    ),
)  # fmt: skip
JOB_STATUS = record(
    "State of the job. `is_reachable`: whether its cluster answers; while it does not, the status of an unfinished job"
    " is the last known one.",
    state=STRING, is_reachable=BOOLEAN, reason=ref("Reason"), attempt=INTEGER, allocated_gpus=NUMBER,
    workers=nullable(INTEGER), queue_position=nullable(INTEGER), start_estimate=START_ESTIMATE,
    started_at=nullable(TIME), finished_at=nullable(TIME), runtime_seconds=nullable(INTEGER),
    exit_code=nullable(INTEGER), gpu_utilization=nullable(NUMBER),
    service_urls=listed({"type": "string", "format": "uri"}), progress=OBJECT, pods=listed(ref("Pod")),
)  # fmt: skip
_SPEC: dict[str, Schema] = {field.name: field.value.answer for field in DECLARED}
JOB_SPEC = record("The submitted spec, with defaults filled in.", **_SPEC)
JOB_SUBMIT = {
    **record("A job to submit.", **{field.name: field.schema for field in DECLARED}),
    "required": [field.name for field in DECLARED if field.is_required],
}
JOB = partial(
    record(
        "A job. Lists show its pods while it holds GPUs; the detail always shows those of the current attempt.",
        **_SPEC, id=UUID, project=STRING, user=STRING, created_at=TIME, status=ref("JobStatus"),
        warnings=listed(STRING),
    ),
    # Present only in the answer to a submission, and only if there is a warning.
    "warnings",
)  # fmt: skip
SCALE_OPERATION = record(
    "A change of the number of workers of an elastic job: `pending`, `running` (the workers were notified),"
    " `succeeded`, `rolled_back` or `failed`. `cause` is `user`, `recovery`, `growth`, `balance`, `reclaim` or `spot`."
    " Lost steps, repeated steps and the pause are measured by the workers at the switch; null for a queued job. In"
    " the answer to a dry run `id` and all times are null and `state` is `planned`.",
    id=nullable(UUID), **{"from": INTEGER}, to=INTEGER, state=STRING, cause=STRING, requested_by=STRING,
    message=STRING, joining=listed(INTEGER), leaving=listed(INTEGER), generation=nullable(INTEGER),
    created_at=nullable(TIME), deadline=nullable(TIME), published_at=nullable(TIME),
    finished_at=nullable(TIME), lost_steps=nullable(INTEGER), repeated_steps=nullable(INTEGER),
    pause_seconds=nullable(NUMBER),
)  # fmt: skip
JOB_PLAN = record(
    "What would happen to a job that is submitted now; nothing is created. `starts_now` and the estimate are null if"
    " another scheduler decides, or the cluster is too large to simulate. `placement`: where it starts now, or once the"
    " jobs that it preempts have stopped. `gpu_hours`: its total use, if its run time is declared. `reason`: why it"
    " waits, null if it starts now; `start_estimate_note`: why the start is unknown, or why it may be sooner than"
    " estimated.",
    starts_now=nullable(BOOLEAN),
    placement=listed(
        record(
            "A pod.", rank=INTEGER, node=STRING,
            devices=listed(record("A share of one GPU.", index=INTEGER, share=NUMBER)),
        ),
    ),
    preempts=listed(
        record(
            "A job that stops first; named only to readers of its project.",
            project=STRING, job=nullable(STRING), name=nullable(STRING),
        ),
    ),
    reason=nullable(ref("Reason")), start_estimate=START_ESTIMATE, start_estimate_note=nullable(STRING),
    gpu_hours=nullable(NUMBER),
)  # fmt: skip
_GPUS_EFFECT = record("GPUs before and after the change.", before=nullable(NUMBER), after=nullable(NUMBER))
_SECONDS_EFFECT = record(
    "Seconds before and after the change; null where no start was seen.",
    before=nullable(INTEGER), after=nullable(INTEGER),
)  # fmt: skip
_JOBS_OF_EFFECT = listed(
    record(
        "A job; named only to readers of its project.",
        project=STRING, job=nullable(STRING), name=nullable(STRING), wait_seconds=_SECONDS_EFFECT,
    ),
)  # fmt: skip
WHAT_IF = record(
    "The effect of another share of the GPUs on the present jobs, from two simulations of the next `followed_seconds`."
    " `held_gpus`: after the first starts and stops. `mean_wait_seconds`: of the jobs that start in both simulations."
    " `preempted` and `spared`: jobs whose first stop occurs only with, or only without, the change. Lists are cut,"
    " `counts` are complete. With `last_week` the submissions of the last days are replayed (`record`; null"
    " otherwise) with today's nodes and quotas: waits begin at submission, shares and held GPUs are means,"
    " `preempted` jobs are stopped more often and `spared` ones less often than without the change;"
    " `recorded_mean_wait_seconds` is how long jobs really waited.",
    followed_seconds=INTEGER,
    projects=listed(
        record(
            "A project of the cluster.",
            project=STRING, fair_share_gpus=_GPUS_EFFECT, held_gpus=_GPUS_EFFECT,
            mean_wait_seconds=_SECONDS_EFFECT, recorded_mean_wait_seconds=nullable(INTEGER),
        ),
    ),
    record=nullable(
        record(
            "The replayed time. `left_out`: jobs of that time that never ran.",
            since=TIME, until=TIME, jobs=INTEGER, left_out=INTEGER,
        ),
    ),
    counts=record("Jobs.", sooner=INTEGER, later=INTEGER, preempted=INTEGER, spared=INTEGER),
    sooner=_JOBS_OF_EFFECT, later=_JOBS_OF_EFFECT, preempted=_JOBS_OF_EFFECT, spared=_JOBS_OF_EFFECT,
)  # fmt: skip
EXPLANATION = record(
    "Why a job is where it is, in numbers. `is_reachable`: whether its cluster answers. `ages_at`: when a gang that"
    " has never started may take GPUs that projects borrow. `start_estimate_note`: why the start is unknown, or why"
    " it may be sooner than estimated.",
    state=STRING, is_reachable=BOOLEAN, reason=ref("Reason"), shortage=nullable(OBJECT),
    queue_position=nullable(INTEGER), ages_at=nullable(TIME), ahead=listed(OBJECT), holders=listed(OBJECT),
    would_start_if=listed(OBJECT), start_estimate=START_ESTIMATE, start_estimate_note=nullable(STRING),
)  # fmt: skip
LOG_PAGE = record(
    "Numbered lines of one pod. Continue at next_offset with the same rank until complete.",
    rank=INTEGER,
    lines=listed(record("A line.", n=INTEGER, time=TIME, stream=STRING, text=STRING, partial=BOOLEAN)),
    next_offset=INTEGER, complete=BOOLEAN,
    gaps=listed(record("Output is missing here.", after=INTEGER, time=TIME, message=STRING)),
)  # fmt: skip
JOB_METRICS = record(
    "The job's current use, and its last reported values.",
    gpu_utilization=nullable(NUMBER), progress=OBJECT,
    pods=listed(
        record("One pod.", rank=INTEGER, gpu_utilization=nullable(NUMBER), gpu_memory_mib=nullable(INTEGER)),
    ),
)  # fmt: skip

IMAGES = record(
    "Names that a job's `image` can have; more may run on clusters that pull from registries. One page.",
    results=listed(record("An image.", name=STRING)), next=nullable(STRING), previous=nullable(STRING),
)  # fmt: skip
COMPONENTS: dict[str, Schema] = {
    "Reason": REASON,
    "Pod": POD,
    "JobStatus": JOB_STATUS,
    "JobSpec": JOB_SPEC,
    "ScaleOperation": SCALE_OPERATION,
    "JobSubmit": JOB_SUBMIT,
    "Job": JOB,
    "Explanation": EXPLANATION,
    "JobPlan": JOB_PLAN,
    "WhatIf": WHAT_IF,
    "LogPage": LOG_PAGE,
    "JobMetrics": JOB_METRICS,
    "Images": IMAGES,
}
