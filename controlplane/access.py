"""Access checks: the only way from an actor to an object.

Raise NotVisible (404) without access, Forbidden (403) if the actor's role is too weak. All signed-in users
may see the names and allocations of projects, because they share the GPUs; only members may see a project's
jobs, logs, members and settings.
"""

import uuid
from dataclasses import dataclass

from django.core.exceptions import ObjectDoesNotExist
from django.db import models
from django.db.models import QuerySet

from controlplane.models import Cluster, Membership, Node, Project, Role, User


class NotVisible(LookupError):
    """The object does not exist, or the actor may not learn that it does."""


class Forbidden(PermissionError):
    """The actor may see the object but not do this with it."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The acting user and the credential used. `user` None is the control plane itself, which counts as an admin.
    `token_prefix`: start of the API token, "" for a session. `address` and `request_id` are for the audit log.
    `is_read_only`: the API token may only read."""

    user: User | None
    token_prefix: str = ""
    address: str = ""
    request_id: str = ""
    is_read_only: bool = False

    @property
    def name(self) -> str:
        return self.user.username if self.user else "system"

    @property
    def is_admin(self) -> bool:
        return self.user is None or self.user.is_admin


SYSTEM = Actor(user=None)


def reread(row: models.Model, *, lock: bool = False) -> None:
    """Reload all fields of `row` from the database. `lock`: also lock the row until the caller's transaction ends, so
    that other transactions cannot change it. Raise NotVisible if the row was deleted."""
    rows = type(row)._default_manager.all()
    try:
        row.refresh_from_db(from_queryset=rows.select_for_update(no_key=True) if lock else rows)
    except ObjectDoesNotExist as error:
        raise NotVisible(f"The {row._meta.verbose_name} was deleted meanwhile.") from error


def require_admin(actor: Actor) -> None:
    """Raise Forbidden unless the actor is a site admin whose credential may write."""
    require_write(actor)
    if not actor.is_admin:
        raise Forbidden("Only an admin may do this.")


def require_write(actor: Actor) -> None:
    """Raise Forbidden if the actor's token is read-only."""
    if actor.is_read_only:
        raise Forbidden("This token is read-only; use one that may write.")


def visible_projects(actor: Actor) -> QuerySet[Project]:
    """Return the projects in which the actor has a role; for an admin, all projects."""
    if actor.is_admin:
        return Project.objects.all()
    return Project.objects.filter(memberships__user=actor.user)


def visible_project_ids(actor: Actor) -> frozenset[int] | None:
    """Return the ids of the projects in which the actor has a role, or None for an admin, who may view all."""
    if actor.is_admin:
        return None
    return frozenset(Membership.objects.filter(user=actor.user).values_list("project_id", flat=True))


def visible_project_names(actor: Actor) -> frozenset[str] | None:
    """Return the names of the projects in which the actor has a role, or None for an admin, who may view all. This is
    the type `Sees` of controlplane.scheduling.mentions."""
    if actor.is_admin:
        return None
    names = Membership.objects.filter(user=actor.user).values_list("project__name", flat=True)
    return frozenset(names)


def role_in(actor: Actor, project: Project) -> str | None:
    """Return the actor's role in a project, None without a membership. An admin is an owner of every project."""
    if actor.is_admin:
        return Role.OWNER
    return Membership.objects.filter(project=project, user=actor.user).values_list("role", flat=True).first()


def project_for(actor: Actor, name: str, *, needed: str = Role.VIEWER) -> Project:
    """Return the project named `name`. Raise NotVisible if it does not exist or the actor has no role in it. Raise
    Forbidden if the role is weaker than `needed`, or if `needed` is above viewer and the token is read-only."""
    missing = NotVisible(f"There is no project named {name!r} that you can see.")
    # Names are unique, so the query needs no ordering.
    try:
        project = Project.objects.select_related("cluster", "department").get(name=name)
    except Project.DoesNotExist as error:
        raise missing from error
    require_role(actor, project, needed, missing)
    return project


def node_for(actor: Actor, name: str) -> Node:
    """Return a node by name; every signed-in user may see nodes. Raise NotVisible if there is none."""
    node = Node.objects.select_related("cluster", "pool").filter(name=name).first()
    if node is None:
        raise NotVisible(f"There is no node named {name!r}.")
    return node


def cluster_for(name: str) -> Cluster:
    """Return a cluster by name; every signed-in user may see clusters. Raise NotVisible if there is none or it is
    detached."""
    cluster = Cluster.objects.filter(name=name, detached_at=None).first()
    if cluster is None:
        raise NotVisible(f"There is no cluster named {name!r}.")
    return cluster


def uuid_of(text: str, missing: NotVisible) -> uuid.UUID:
    """Return `text`, an id from a URL, as a UUID. Raise `missing` if it is malformed."""
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise missing from error


def require_role(actor: Actor, project: Project, needed: str, missing: NotVisible) -> None:
    """Raise `missing` if the actor has no role in the project, as if the object did not exist. Raise Forbidden if the
    role is weaker than `needed`, or if `needed` is above viewer and the token is read-only."""
    require_held(actor, project, role_in(actor, project), needed, missing)


def require_held(actor: Actor, project: Project, held: str | None, needed: str, missing: NotVisible) -> None:
    """Raise `missing` if `held` is None. Raise Forbidden if `held` is weaker than `needed`, or if `needed` is above
    viewer and the token is read-only. `held`: the actor's role for an object of the project, None if it may not see
    the object."""
    if held is None:
        raise missing
    if needed != Role.VIEWER:
        require_write(actor)
    if not Role.is_at_least(held, needed):
        raise Forbidden(f"This needs the role {needed} in {project.name}; you are {held}.")
