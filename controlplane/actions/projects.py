"""Actions on projects: create, edit, delete, members. Each writes one audit row and one event in one transaction,
and wakes the loop."""

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from controlplane.access import Actor, require_admin, reread
from controlplane.actions.audit import write_audit, write_fields
from controlplane.actions.errors import Conflict, invalid
from controlplane.actions.events import announce
from controlplane.app_holdings import counts_of, holdings
from controlplane.engines.kinds import engine_kind
from controlplane.models import (
    Cluster,
    Command,
    Counter,
    Device,
    Event,
    Membership,
    Node,
    Project,
    Role,
    User,
)
from controlplane.queries.projects import namespace_of

PALETTE_SIZE = 12
OWNER_FIELDS = frozenset({"description", "interactive_max_seconds", "interactive_idle_seconds"})


def create_project(fields: Mapping[str, Any], *, actor: Actor) -> Project:
    """Create a project from validated model fields. Raise Forbidden unless the actor is an admin, Conflict if the
    name is taken or, on a cluster with namespaces, while an earlier project's objects of this name are still being
    removed from any cluster."""
    require_admin(actor)
    _refuse_while_cleaning_up(fields["name"], fields["cluster"])
    try:
        with transaction.atomic():
            project = Project.objects.create(palette_index=Project.objects.count() % PALETTE_SIZE, **fields)
            write_audit(actor, "project.create", "project", project.name, after=_shown(project))
            _happened("project.created", project, actor)
    except IntegrityError as error:
        raise Conflict("name_taken", f"There is a project named {fields['name']} already.") from error
    return project


def edit_project(project: Project, changes: Mapping[str, Any], *, actor: Actor) -> Project:
    """Change fields of a project. The caller checks that the actor is an owner; raise Forbidden if a field is not in
    OWNER_FIELDS and the actor is no admin. Raise Conflict for a move to another cluster while the project has jobs,
    volumes or snapshots, or while objects of an earlier project with this name are still being removed."""
    if not set(changes) <= OWNER_FIELDS:
        require_admin(actor)
    with transaction.atomic():
        if "cluster" in changes:
            # Every submission locks this counter before it inserts its job. With the lock held here, a concurrent
            # job is either visible already or inserted after the move.
            Counter.objects.advance("submission", 0)
            # Every new volume updates the project's row, so none is added while this lock is held.
            reread(project, lock=True)
        before = _shown(project)
        if changes.get("cluster", project.cluster) != project.cluster:
            _leave_cluster(project, changes["cluster"])
        write_fields(project, changes)
        write_audit(actor, "project.edit", "project", project.name, before=before, after=_shown(project))
        _happened("project.edited", project, actor)
    return project


def delete_project(project: Project, *, actor: Actor) -> None:
    """Delete a project with its finished jobs, and queue the removal of its objects in the cluster. Raise Forbidden
    unless the actor is an admin, Conflict while it has unfinished jobs, volumes or snapshots, or jobs of other
    projects mount its datasets."""
    require_admin(actor)
    with transaction.atomic():
        for app in holdings():
            app.check_deletion(project)
        write_audit(actor, "project.delete", "project", project.name, before=_shown(project))
        project_id, name = project.pk, project.name
        for app in holdings():
            app.remove(project, actor)
        _order_removal(project)
        project.delete()
        announce(Event(kind="project.deleted", project_id=project_id, actor=actor.name, message=name))


def taken_along(project: Project) -> dict[str, Any]:
    """Return what deleting the project would remove: the counts of `counts_of`, `members`, and `namespace` (None if
    the cluster has none). `is_reachable` False: the namespace remains until `cluster` is reachable."""
    return {
        "cluster": project.cluster.name,
        "is_reachable": project.cluster.is_reachable,
        "namespace": namespace_of(project) if engine_kind(project.cluster.engine).has_namespaces else None,
        **counts_of(project),
        "members": project.memberships.count(),
    }


def set_member(project: Project, user: User, role: str, *, actor: Actor) -> Membership:
    """Add a user to a project, or change the member's role. The caller checks that the actor may. Raise Invalid for
    an unknown role, Conflict if no owner would remain."""
    if role not in Role.ORDER:
        raise invalid("/role", "unknown_role", f"The role is one of: {', '.join(Role.ORDER)}.")
    with transaction.atomic():
        _keep_an_owner(project, user, role)
        membership, _ = Membership.objects.update_or_create(
            project=project, user=user, defaults={"role": role}
        )
        after = {"user": user.username, "role": role}
        write_audit(actor, "project.set_member", "project", project.name, after=after)
        _happened("project.member_set", project, actor, after)
    return membership


def remove_member(project: Project, user: User, *, actor: Actor) -> None:
    """Remove a user from a project; do nothing if it is no member. The caller checks that the actor may. Raise
    Conflict for the last owner."""
    with transaction.atomic():
        _keep_an_owner(project, user, None)
        removed, _ = Membership.objects.filter(project=project, user=user).delete()
        if not removed:
            return
        before = {"user": user.username}
        write_audit(actor, "project.remove_member", "project", project.name, before=before)
        _happened("project.member_removed", project, actor, before)


def oversold_warning(project: Project) -> str | None:
    """Return a warning if the project's quota exceeds all GPUs of its cluster; None if it does not, or while the
    cluster's nodes are not discovered."""
    gpus = Device.objects.filter(node__cluster=project.cluster).count()
    is_known = gpus or Node.objects.filter(cluster=project.cluster).exists()
    if project.gpu_quota_milli <= gpus * 1000 or not is_known:
        return None
    quota = project.gpu_quota_milli / 1000
    return f"The quota of {quota:g} is above the cluster's GPUs ({gpus}); it cannot be met in full."


def _leave_cluster(project: Project, cluster: Cluster) -> None:
    """Queue the removal of the project's objects from its old cluster, before it moves to `cluster`. Raise Conflict
    if it has jobs, volumes or snapshots, or as `_refuse_while_cleaning_up`."""
    for app in holdings():
        app.check_move(project)
    _refuse_while_cleaning_up(project.name, cluster)
    for app in holdings():
        app.leave(project)
    _order_removal(project)


def _order_removal(project: Project) -> None:
    Command.objects.create(
        kind=Command.FORGET_PROJECT,
        cluster_id=project.cluster_id,
        subject_kind="project",
        subject_id=project.name,
    )


def _refuse_while_cleaning_up(name: str, cluster: Cluster) -> None:
    """Raise Conflict if `cluster` has namespaces, while any cluster still removes the objects of a project of this name
    that was deleted or moved: the removal would also hit the new project's objects."""
    if not engine_kind(cluster.engine).has_namespaces:
        return
    removals = Command.objects.about("project", name).of_kinds([Command.FORGET_PROJECT])
    if removals.unfinished().exists():
        raise Conflict(
            "project_cleaning_up",
            f"What an earlier {name} left in its cluster is still being removed; try again in a moment.",
        )


def _keep_an_owner(project: Project, user: User, role: str | None) -> None:
    owners = Membership.objects.filter(project=project, role=Role.OWNER)
    if role != Role.OWNER and owners.filter(user=user).exists() and owners.count() == 1:
        raise Conflict(
            "last_owner", f"{user.username} is the last owner of {project.name}; name another one first."
        )


def _happened(kind: str, project: Project, actor: Actor, data: dict[str, Any] | None = None) -> None:
    announce(Event(kind=kind, project_id=project.pk, actor=actor.name, data=data or {}))


def _shown(project: Project) -> dict[str, Any]:
    return {
        **project.share_values(),
        "department": project.department.name if project.department else None,
        "cluster": project.cluster.name,
        "description": project.description,
        "node_pools": project.node_pools,
        "interactive_max_seconds": project.interactive_max_seconds,
        "interactive_idle_seconds": project.interactive_idle_seconds,
    }
