"""REST views that resize elastic jobs and list their scale operations."""

from collections.abc import Sequence
from typing import Any

from controlplane.api.bodies import BodyField
from controlplane.api.json_schema import INTEGER, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import Listing, paged
from controlplane.fields import Refused, whole
from controlplane.models import Role
from jobs.access import job_for
from jobs.api.schemas import SCALE_OPERATION
from jobs.fields.declared import FIELDS
from jobs.models import ScaleOperation
from jobs.queries import planned_scale_shape, scale_shape
from jobs.scaling import TIMEOUT_SECONDS, Scaling, plan_scaling, scale_job

LONGEST_TIMEOUT = 7 * 86_400
SCALE_OPERATIONS = Listing(SCALE_OPERATION, {"created_at": ("created_at", "id")}, "-created_at", {})


def _ranks(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 10_000:
        raise Refused("not_a_list", "This must be a list of ranks.")
    return tuple(whole(0, 2**31 - 1)(rank) for rank in value)


SCALE = {
    "workers": BodyField(FIELDS["workers"].read, FIELDS["workers"].value.schema, is_required=True),
    "timeout_seconds": BodyField(
        whole(1, LONGEST_TIMEOUT),
        {
            **INTEGER,
            "minimum": 1,
            "maximum": LONGEST_TIMEOUT,
            "default": TIMEOUT_SECONDS,
            "description": "After this time an incomplete change is rolled back. A queued job is scaled at once.",
        },
    ),
    "leaving": BodyField(
        _ranks,
        {
            "type": "array",
            "items": {**INTEGER, "minimum": 0},
            "description": "Ranks of the workers to remove; by default those whose removal costs least.",
        },
    ),
}


class JobScale(ApiView):
    """Resize an elastic job."""

    @operation("Change the number of workers of an elastic job", answer=ref("ScaleOperation"), body=SCALE)
    def post(self, call: Call, job_id: str) -> Answer:
        job = job_for(call.actor, job_id, needed=Role.MEMBER)
        body, timeout_seconds = call.body, call.body.get("timeout_seconds", TIMEOUT_SECONDS)
        asked = Scaling(body["workers"], timeout_seconds, body.get("leaving", ()))
        if call.is_dry_run:
            return Answer(planned_scale_shape(plan_scaling(job, asked), call.actor.name))
        made = scale_job(
            job, asked.workers, actor=call.actor, timeout_seconds=timeout_seconds, leaving=asked.leaving
        )
        return Answer(scale_shape(made))


class JobScaleOperations(ApiView):
    """Scale operations of a job, newest first."""

    @SCALE_OPERATIONS.operation("List the changes of an elastic job's workers", "ScaleOperation")
    def get(self, call: Call, job_id: str) -> Answer:
        rows = ScaleOperation.objects.filter(job=job_for(call.actor, job_id))
        return paged(call, rows, SCALE_OPERATIONS, fetch=list, shape=_shape_scale_operations)


def _shape_scale_operations(rows: Sequence[ScaleOperation]) -> list[dict[str, Any]]:
    return [scale_shape(row) for row in rows]
