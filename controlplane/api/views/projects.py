"""Projects and their members."""

import math
from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet

from controlplane import fields
from controlplane.access import Actor, NotVisible, project_for, require_admin, visible_projects
from controlplane.actions.directory import find_user
from controlplane.actions.errors import Invalid
from controlplane.actions.nodes import require_pools
from controlplane.actions.projects import (
    create_project,
    delete_project,
    edit_project,
    oversold_warning,
    remove_member,
    set_member,
    taken_along,
)
from controlplane.api import query
from controlplane.api.bodies import BodyField, label_field, text_field
from controlplane.api.json_schema import INTEGER, NUMBER, STRING, listed, nullable, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import Filter, Listing, fields_parameter, paged, trimmed
from controlplane.api.schemas import MEMBER, PROJECT
from controlplane.app_holdings import known_kinds
from controlplane.fields import FieldError, Refused
from controlplane.models import Cluster, Department, Membership, Project, Role
from controlplane.queries.projects import project_detail, project_rows

# As milli-GPUs this still fits into the columns' 32 bits.
MOST_GPUS = 1_000_000
_SECONDS = fields.optional(fields.whole(1, 10 * 365 * 86400))


def _gpus(value: Any) -> int:
    """Return a number of GPUs as milli-GPUs. Raise Refused outside 0 to MOST_GPUS, and for steps finer than 0.001."""
    count = fields.number(value)
    if not 0 <= count <= MOST_GPUS:
        raise Refused("out_of_range", f"This must be from 0 to {MOST_GPUS:,} GPUs.")
    milli = round(count * 1000)
    if not math.isclose(milli, count * 1000, abs_tol=1e-6):
        raise Refused("gpu_share_too_fine", "Counts of GPUs go in steps of 0.001; round it.")
    return milli


def _member(value: Any) -> dict[str, str]:
    """Return a member such as {"user": "ana", "role": "owner"}. Raise Refused for other values."""
    if not isinstance(value, dict) or set(value) != {"user", "role"}:
        raise Refused("not_a_member", 'A member is {"user": "ana", "role": "owner"}.')
    user = fields.text(150)(value["user"])
    if value["role"] not in Role.ORDER:
        raise Refused("unknown_role", f"The role is one of: {', '.join(Role.ORDER)}.", "/role")
    return {"user": user, "role": value["role"]}


def _node_pools(value: Any) -> dict[str, list[str]]:
    """Return the allowed node pools by kind of job, such as {"train": ["dgx"]}; an empty list allows every pool.
    Raise Refused for other values. Whether the pools exist is not checked."""
    if not isinstance(value, dict):
        raise Refused("not_an_object", 'Node pools are {"train": ["dgx"]}.')
    for kind in value:
        if kind not in (known := known_kinds()):
            raise Refused(
                "unknown_kind", f"The kind is one of: {', '.join(known)}.", "/" + fields.pointer_part(kind)
            )
    reader = fields.listed(fields.dns_label(50), 100)
    return {kind: list(fields.inside(reader, pools, f"/{kind}")) for kind, pools in value.items()}


def _read_only(value: Any) -> None:
    raise Refused("read_only", "The server computes this; leave it out.")


_seconds_schema = nullable({**INTEGER, "minimum": 1})
_count = {**NUMBER, "minimum": 0}
SHARE_FIELDS = {
    "gpu_quota": BodyField(_gpus, _count),
    "over_quota_weight": BodyField(fields.optional(_gpus), nullable(_count)),
    "gpu_limit": BodyField(fields.optional(_gpus), nullable(_count)),
    "priority": BodyField(fields.whole(0, 1000), {**INTEGER, "minimum": 0, "maximum": 1000}),
}
SHARE_COLUMNS = {
    "gpu_quota": "gpu_quota_milli",
    "over_quota_weight": "over_quota_weight_milli",
    "gpu_limit": "gpu_limit_milli",
}
CHANGES = {
    "description": text_field(500),
    **SHARE_FIELDS,
    "department": BodyField(fields.optional(fields.text(50)), nullable(STRING)),
    "cluster": BodyField(fields.text(50), STRING),
    "node_pools": BodyField(_node_pools, {"type": "object", "additionalProperties": listed(STRING)}),
    "interactive_max_seconds": BodyField(_SECONDS, _seconds_schema),
    "interactive_idle_seconds": BodyField(_SECONDS, _seconds_schema),
    "members": BodyField(fields.listed(_member, 1000), listed(ref("Member"))),
    "status": BodyField(_read_only, {}),
    "created_at": BodyField(_read_only, {}),
}
NEW_PROJECT = {
    "name": label_field(50, is_required=True),
    **CHANGES,
}
NEW_MEMBER = {
    "user": BodyField(fields.text(150), STRING, is_required=True),
    "role": BodyField(fields.text(16), {**STRING, "enum": list(Role.ORDER)}, is_required=True),
}
NEW_ROLE = {"role": NEW_MEMBER["role"]}

PROJECTS = Listing(
    PROJECT,
    {"name": ("name",), "created_at": ("created_at", "id"), "gpu_quota": ("gpu_quota_milli", "id")},
    "name",
    {
        "name": Filter("name__in", query.texts("With these names.")),
        "cluster": Filter("cluster__name__in", query.texts("On these clusters.")),
        "department": Filter("department__name__in", query.texts("In these departments.")),
    },
)
MEMBERS = Listing(
    MEMBER,
    {"user": ("user__username",)},
    "user",
    {"role": Filter("role__in", query.choices(Role.ORDER, "With these roles."))},
)


class Projects(ApiView):
    """The projects that the caller may view. Admins may create one, with its members."""

    @PROJECTS.operation("List projects", "Project")
    def get(self, call: Call) -> Answer:
        rows = visible_projects(call.actor).select_related("cluster", "department")
        return paged(call, rows, PROJECTS, fetch=list, shape=project_rows)

    @operation("Create a project", answer=ref("Project"), status=201, body=NEW_PROJECT)
    def post(self, call: Call) -> Answer:
        require_admin(call.actor)
        columns, members = _fields(call.body)
        cluster = _cluster_named(call.body.get("cluster"))
        _check_pools(cluster, columns.get("node_pools", {}))
        project = create_project({**columns, "cluster": cluster}, actor=call.actor)
        for member in members or ():
            _set_member(call.actor, project, member)
        return Answer(_shown(project), 201, revision=_revision(project))


class ProjectDetail(ApiView):
    """One project, by name. Its members may view it, owners may edit some fields and members, admins all; only admins
    may delete it. 404 if the caller may not view it."""

    @operation(
        "A project with its status", answer=ref("Project"), query={"fields": fields_parameter(PROJECT)}
    )
    def get(self, call: Call, name: str) -> Answer:
        project = project_for(call.actor, name)
        return Answer(trimmed(call, project_detail(project)), revision=_revision(project))

    @operation("Edit a project: owners some fields, admins all", answer=ref("Project"), body=CHANGES)
    def patch(self, call: Call, name: str) -> Answer:
        project = call.require_match(project_for(call.actor, name, needed=Role.OWNER), _revision)
        columns, members = _fields(call.body)
        if "cluster" in call.body:
            columns["cluster"] = _cluster_named(call.body["cluster"])
        is_moved = columns.get("cluster", project.cluster) != project.cluster
        pools = project.node_pools if is_moved else {}
        _check_pools(columns.get("cluster", project.cluster), columns.get("node_pools", pools))
        if columns:
            edit_project(project, columns, actor=call.actor)
        if members is not None:
            _replace_members(call.actor, project, members)
        return Answer(_shown(project), revision=_revision(project))

    @operation(
        "Delete a project with its finished jobs; a dry run lists what goes",
        answer=ref("ProjectDeletion"),
        status=200,
    )
    def delete(self, call: Call, name: str) -> Answer:
        project = call.require_match(project_for(call.actor, name, needed=Role.OWNER), _revision)
        require_admin(call.actor)
        taken = {"project": project.name} | taken_along(project)
        if not call.is_dry_run or not taken["unfinished_jobs"]:
            delete_project(project, actor=call.actor)
        return Answer(taken)


class Members(ApiView):
    """The members of a project. All of them may list them; owners and admins may add one."""

    @MEMBERS.operation("List members", "Member")
    def get(self, call: Call, name: str) -> Answer:
        rows = Membership.objects.filter(project=project_for(call.actor, name))
        return paged(call, rows, MEMBERS, fetch=_fetch_members, shape=_shape_members)

    @operation("Add a member, or change the role of one", answer=ref("Member"), status=201, body=NEW_MEMBER)
    def post(self, call: Call, name: str) -> Answer:
        project = project_for(call.actor, name, needed=Role.OWNER)
        is_new = not project.memberships.filter(user__username=call.body["user"]).exists()
        _set_member(call.actor, project, call.body)
        return Answer(dict(call.body), 201 if is_new else 200)


class MemberDetail(ApiView):
    """One member, by user name. Owners of the project and admins may change the role or remove the member; 409 for the
    last owner."""

    @operation("A member", answer=ref("Member"))
    def get(self, call: Call, name: str, username: str) -> Answer:
        membership = _membership(project_for(call.actor, name), username)
        return Answer(_shape_member(membership), revision=_shape_member(membership))

    @operation("Change a member's role", answer=ref("Member"), body=NEW_ROLE)
    def patch(self, call: Call, name: str, username: str) -> Answer:
        project = project_for(call.actor, name, needed=Role.OWNER)
        membership = call.require_match(_membership(project, username), _shape_member)
        changed = set_member(project, membership.user, call.body["role"], actor=call.actor)
        return Answer(_shape_member(changed), revision=_shape_member(changed))

    @operation("Remove a member from the project", answer={}, status=204)
    def delete(self, call: Call, name: str, username: str) -> Answer:
        project = project_for(call.actor, name, needed=Role.OWNER)
        membership = call.require_match(_membership(project, username), _shape_member)
        remove_member(project, membership.user, actor=call.actor)
        return Answer(None, 204)


def _revision(project: Project) -> Any:
    """Return what the project's ETag is made from: its REST object without `status`, which changes all the time."""
    shown = project_detail(project)
    return {name: value for name, value in shown.items() if name != "status"}


def _shown(project: Project) -> dict[str, Any]:
    warning = oversold_warning(project)
    return project_detail(project) | {"warnings": [warning] if warning else []}


def _fields(body: dict[str, Any]) -> tuple[dict[str, Any], Sequence[dict[str, str]] | None]:
    """Return the body's values by model column, without `cluster`, and its members (None if the body has none). Raise
    Invalid for an unknown department."""
    rest = {name: value for name, value in body.items() if name not in ("members", "cluster", "department")}
    columns = {SHARE_COLUMNS.get(name, name): value for name, value in rest.items()}
    if "department" in body:
        columns["department"] = _department_named(body["department"])
    return columns, body.get("members")


def _department_named(name: str | None) -> Department | None:
    if name is None:
        return None
    department = Department.objects.filter(name=name).first()
    if department is None:
        raise _unknown("/department", f"There is no department named {name}; an admin can create one.")
    return department


def _cluster_named(name: str | None) -> Cluster:
    attached = Cluster.objects.filter(detached_at=None, state=Cluster.ATTACHED).order_by("pk")
    cluster = attached.first() if name is None else attached.filter(name=name).first()
    if cluster is None:
        known = ", ".join(attached.values_list("name", flat=True)) or "none yet: register one"
        raise _unknown("/cluster", f"There is no such cluster; the clusters are: {known}.")
    return cluster


def _check_pools(cluster: Cluster, pools: dict[str, list[str]]) -> None:
    named = {
        f"/node_pools/{kind}/{index}": name
        for kind, names in pools.items()
        for index, name in enumerate(names)
    }
    require_pools(cluster, named)


def _replace_members(actor: Actor, project: Project, members: Sequence[dict[str, str]]) -> None:
    """Make these the only members. New ones are added before others are removed, so that an owner can hand a project
    over. Raise Invalid for an unknown user, Conflict if no owner would remain."""
    for member in sorted(members, key=lambda member: member["role"] != Role.OWNER):
        _set_member(actor, project, member)
    kept = {member["user"] for member in members}
    for membership in project.memberships.exclude(user__username__in=kept).select_related("user"):
        remove_member(project, membership.user, actor=actor)


def _set_member(actor: Actor, project: Project, member: dict[str, str]) -> None:
    user = find_user(member["user"], project, actor=actor)
    if user is None:
        raise _unknown("/user", f"There is no user named {member['user']}; an admin can create one.")
    set_member(project, user, member["role"], actor=actor)


def _membership(project: Project, username: str) -> Membership:
    found = Membership.objects.select_related("user").filter(project=project, user__username=username).first()
    if found is None:
        raise NotVisible(f"{username} is not a member of {project.name}.")
    return found


def _fetch_members(rows: QuerySet[Membership]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows.values("user__username", "role")]


def _shape_members(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"user": row["user__username"], "role": row["role"]} for row in rows]


def _shape_member(membership: Membership) -> dict[str, Any]:
    return {"user": membership.user.username, "role": membership.role}


def _unknown(pointer: str, detail: str) -> Invalid:
    return Invalid(FieldError(pointer, "not_found", detail))
