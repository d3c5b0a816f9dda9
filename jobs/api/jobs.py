"""REST views that submit, list and change jobs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db.models import QuerySet

from controlplane import fields
from controlplane.access import (
    Actor,
    project_for,
    reread,
    visible_project_ids,
    visible_project_names,
)
from controlplane.api import query
from controlplane.api.bodies import BodyField
from controlplane.api.json_schema import INTEGER, listed, record, ref
from controlplane.api.operations import DRY_RUN, Answer, ApiView, Call, operation
from controlplane.api.paging import WITH_NAMES, Filter, Listing, fields_parameter, paged, trimmed
from controlplane.models import Project, Role
from jobs.access import job_for
from jobs.actions import (
    clone_body,
    delete_job,
    edit_job,
    resume_job,
    stop_job,
    submit_job,
    submit_jobs,
    suspend_job,
)
from jobs.api.schemas import JOB
from jobs.fields.declared import FIELDS, PRIORITY
from jobs.images import image_notices
from jobs.kinds.registry import KINDS
from jobs.lifecycle import STATES
from jobs.models import Job
from jobs.outlook import known_estimate
from jobs.planning import plan_job
from jobs.queries import job_columns, job_detail, shape_jobs
from jobs.transitions import LONGEST_GRACE_SECONDS, SUSPEND_GRACE_SECONDS

CHANGES = {
    "priority": BodyField(PRIORITY.read, PRIORITY.schema),
    "labels": BodyField(FIELDS["labels"].read, FIELDS["labels"].value.schema),
}
SUSPEND = {
    "grace_seconds": BodyField(
        fields.whole(1, LONGEST_GRACE_SECONDS),
        {
            **INTEGER,
            "minimum": 1,
            "maximum": LONGEST_GRACE_SECONDS,
            "default": SUSPEND_GRACE_SECONDS,
            "description": "From SIGTERM, on which programs save a checkpoint, to SIGKILL.",
        },
    )
}
CLONE = {"name": BodyField(FIELDS["name"].read, FIELDS["name"].value.schema)}
# Limit on jobs per request; this many of the usual size fit into a body.
BATCH_MOST = 500


def _bodies(value: Any) -> tuple[dict[str, Any], ...]:
    """Return the submissions of a batch unparsed; the action parses each. Raises Refused for no jobs, or more
    than BATCH_MOST."""
    bodies: tuple[dict[str, Any], ...] = fields.listed(_one_body, BATCH_MOST)(value)
    if not bodies:
        raise fields.Refused("too_few", "Give at least one job.")
    return bodies


def _one_body(value: Any) -> Any:
    if not isinstance(value, dict):
        raise fields.Refused("not_an_object", "A job is a JSON object.")
    return value


BATCH = {
    "jobs": BodyField(
        _bodies, {**listed(ref("JobSubmit")), "minItems": 1, "maxItems": BATCH_MOST}, is_required=True
    )
}

_FILTERS = {
    "state": Filter("state__in", query.choices(STATES, "In these states.")),
    "kind": Filter("kind__in", query.choices(tuple(KINDS), "Of these kinds.")),
    "name": WITH_NAMES,
    "user": Filter("user__username__in", query.texts("Of these users.")),
    "reason": Filter("reason__in", query.texts("With these reasons.")),
    "created_after": Filter("created_at__gte", query.moment("Submitted at this time or later.")),
    "created_before": Filter("created_at__lt", query.moment("Submitted before this time.")),
}
_ORDERINGS = {
    # Submission order: a preempted job keeps its place, and the column is unique and indexed.
    "created_at": ("submit_rank",),
    "name": ("name", "submit_rank"),
    "state": ("state", "submit_rank"),
    "priority": ("priority", "submit_rank"),
}
PROJECT_JOBS = Listing(JOB, _ORDERINGS, "-created_at", _FILTERS)
JOBS = PROJECT_JOBS.of_all_projects()


class Jobs(ApiView):
    """Jobs of every project that the caller may see."""

    @JOBS.operation("List jobs across projects", "Job")
    def get(self, call: Call) -> Answer:
        return _listed(call, _visible(call.actor), JOBS)


class ProjectJobs(ApiView):
    """Jobs of one project."""

    @PROJECT_JOBS.operation("List a project's jobs", "Job")
    def get(self, call: Call, name: str) -> Answer:
        return _listed(call, Job.objects.filter(project=project_for(call.actor, name)), PROJECT_JOBS)

    @operation("Submit a job", answer=ref("Job"), status=201, body_is=ref("JobSubmit"))
    def post(self, call: Call, name: str) -> Answer:
        project = project_for(call.actor, name, needed=Role.MEMBER)
        return _submitted(call, project, call.body)


class ProjectJobBatch(ApiView):
    """Many jobs of one project in one request, all or none."""

    @operation(
        "Submit many jobs, all of them or none",
        answer=record("The jobs in the order given.", results=listed(ref("Job"))),
        status=201,
        body=BATCH,
    )
    def post(self, call: Call, name: str) -> Answer:
        project = project_for(call.actor, name, needed=Role.MEMBER)
        jobs = submit_jobs(project, call.body["jobs"], actor=call.actor)
        return Answer({"results": _as_submitted(project, jobs)}, 201)


class ProjectJobPlan(ApiView):
    """Preview of a submission: where and when the job would start."""

    @operation(
        "Where and when a job would start, and which jobs would stop for it; nothing is created",
        answer=ref("JobPlan"),
        body_is=ref("JobSubmit"),
        # Accepted as on every write, although a plan never writes.
        query={"dry_run": DRY_RUN},
        is_remembered=False,
    )
    def post(self, call: Call, name: str) -> Answer:
        project = project_for(call.actor, name, needed=Role.MEMBER)
        sees = visible_project_names(call.actor)
        return Answer(plan_job(project, call.body, actor=call.actor, sees=sees))


class JobDetail(ApiView):
    """A job, by id, with its status and pods."""

    @operation("A job with its status and pods", answer=ref("Job"), query={"fields": fields_parameter(JOB)})
    def get(self, call: Call, job_id: str) -> Answer:
        job = job_for(call.actor, job_id)
        shown = job_detail(job, visible_project_names(call.actor))
        shown["status"]["start_estimate"] = known_estimate(job)
        return Answer(trimmed(call, shown), revision=_revision(job))

    @operation("Change priority or labels", answer=ref("Job"), body=CHANGES)
    def patch(self, call: Call, job_id: str) -> Answer:
        job = call.require_match(job_for(call.actor, job_id, needed=Role.MEMBER), _revision)
        if call.body:
            edit_job(job, call.body, actor=call.actor)
        return _shown(call.actor, job)

    @operation("Delete a job; one that runs is stopped first", answer=ref("Job"), status=202, also=(204,))
    def delete(self, call: Call, job_id: str) -> Answer:
        job = call.require_match(job_for(call.actor, job_id, needed=Role.MEMBER), _revision)
        sees = visible_project_names(call.actor)
        before = job_detail(job, sees)
        delete_job(job, actor=call.actor)
        if not Job.objects.filter(pk=before["id"]).exists():
            return Answer(before if call.is_dry_run else None, 204)
        reread(job)
        return Answer(job_detail(job, sees), 202)


class JobStop(ApiView):
    """Stop a job permanently."""

    @operation("Stop a job permanently; its record stays", answer=ref("Job"))
    def post(self, call: Call, job_id: str) -> Answer:
        return _transition(call, job_id, stop_job)


class JobSuspend(ApiView):
    """Suspend a job: release its GPUs until it is resumed."""

    @operation(
        "Have the job save a checkpoint, release its GPUs and hold it", answer=ref("Job"), body=SUSPEND
    )
    def post(self, call: Call, job_id: str) -> Answer:
        grace_seconds = call.body.get("grace_seconds", SUSPEND_GRACE_SECONDS)
        return _transition(call, job_id, partial(suspend_job, grace_seconds=grace_seconds))


class JobResume(ApiView):
    """Queue a suspended job again."""

    @operation("Queue a suspended job again, at its original place", answer=ref("Job"))
    def post(self, call: Call, job_id: str) -> Answer:
        return _transition(call, job_id, resume_job)


class JobClone(ApiView):
    """Submit a copy of a job."""

    @operation("Submit the same job again under another name", answer=ref("Job"), status=201, body=CLONE)
    def post(self, call: Call, job_id: str) -> Answer:
        job = job_for(call.actor, job_id, needed=Role.MEMBER)
        name = call.body.get("name") or _free_name(job)
        return _submitted(call, job.project, clone_body(job, name))


def _transition(call: Call, job_id: str, action: Callable[..., Job]) -> Answer:
    return _shown(call.actor, action(job_for(call.actor, job_id, needed=Role.MEMBER), actor=call.actor))


def _visible(actor: Actor) -> QuerySet[Job]:
    """Return the jobs of visible projects, selected by project id: without a join, the index on (project, rank)
    serves a page."""
    visible = visible_project_ids(actor)
    return Job.objects.all() if visible is None else Job.objects.filter(project_id__in=visible)


def _listed(call: Call, jobs: QuerySet[Job], listing: Listing) -> Answer:
    shape = partial(shape_jobs, sees=visible_project_names(call.actor))
    return paged(call, jobs, listing, fetch=job_columns, shape=shape)


def _submitted(call: Call, project: Project, body: dict[str, Any]) -> Answer:
    job = submit_job(project, body, actor=call.actor)
    [shown] = _as_submitted(project, [job])
    return Answer(shown, 201, revision=_revision(job))


def _as_submitted(project: Project, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    notices = image_notices(project, [job.spec for job in jobs])
    return [
        job_detail(job) | ({"warnings": [notice]} if notice else {})
        for job, notice in zip(jobs, notices, strict=True)
    ]


def _shown(actor: Actor, job: Job) -> Answer:
    return Answer(job_detail(job, visible_project_names(actor)), revision=_revision(job))


def _revision(job: Job) -> Any:
    """Return the values that If-Match guards: spec and state, but not progress and run time, which change
    every second."""
    return [job.spec, job.labels, job.priority, job.state, job.attempt]


def _free_name(job: Job) -> str:
    """Return the job's name, shortened if needed, with the lowest number from 2 that no job of its project has."""
    stem = job.name[:55].rstrip("-")
    taken = set(job.project.jobs.filter(name__startswith=stem).values_list("name", flat=True))
    number = 2
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"
