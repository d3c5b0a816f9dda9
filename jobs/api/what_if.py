"""REST view that simulates a change of a project's share of the GPUs."""

from controlplane.access import project_for, visible_project_names
from controlplane.actions.errors import Conflict
from controlplane.api import query
from controlplane.api.json_schema import ref
from controlplane.api.operations import DRY_RUN, Answer, ApiView, Call, operation
from controlplane.api.views.projects import SHARE_COLUMNS, SHARE_FIELDS
from controlplane.models import Role
from jobs.what_if import CannotSimulate, share_what_if, week_what_if

LAST_WEEK = query.switch(
    "Replay the submissions of the last seven days, instead of simulating the present jobs.", False
)


class ProjectWhatIf(ApiView):
    """Simulation of the cluster with another quota, weight, limit or priority of one project."""

    @operation(
        "Which jobs would start, stop and wait with another quota, weight, limit or priority; nothing is changed",
        answer=ref("WhatIf"),
        body=SHARE_FIELDS,
        # `dry_run` is accepted as on every write, although a simulation never writes.
        query={"dry_run": DRY_RUN, "last_week": LAST_WEEK},
        is_remembered=False,
    )
    def post(self, call: Call, name: str) -> Answer:
        project = project_for(call.actor, name, needed=Role.OWNER)
        ask = week_what_if if call.query["last_week"] else share_what_if
        changes = {SHARE_COLUMNS.get(field, field): value for field, value in call.body.items()}
        try:
            found = ask(project, changes, sees=visible_project_names(call.actor))
        except CannotSimulate as refusal:
            raise Conflict("cannot_simulate", str(refusal)) from refusal
        return Answer(found)
