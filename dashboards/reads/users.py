"""Data of users and their memberships."""

from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane.access import Actor, visible_projects
from controlplane.models import Membership, Project, Token, User
from jobs.lifecycle import ACTIVE_STATES
from jobs.models import Job

Row = dict[str, Any]


def visible_user(actor: Actor, username: str) -> User | None:
    """Return a user that the actor may see: the actor, members of the actor's projects, for an admin all
    users; else None."""
    users: QuerySet[User] = User.objects.filter(username=username)
    if not actor.is_admin:
        users = users.filter(
            Q(pk=actor.user.pk if actor.user else None) | Q(memberships__project__in=visible_projects(actor))
        )
    return users.distinct().first()


def memberships(actor: Actor, user: User) -> list[Row]:
    """Return the user's memberships in projects that the actor may see: project, colour and role."""
    rows = Membership.objects.filter(user=user, project__in=visible_projects(actor)).order_by("project__name")
    return [{**row} for row in rows.values("project__name", "project__palette_index", "role")]


def unfinished_jobs(user: User, project: Project | None = None) -> tuple[int, int]:
    """Return (number of a user's jobs in an active state, number of the other unfinished ones), in one project,
    None for all."""
    jobs = Job.objects.filter(user=user).unfinished()
    jobs = jobs if project is None else jobs.filter(project=project)
    active = jobs.filter(state__in=ACTIVE_STATES).count()
    return active, jobs.count() - active


def live_tokens(user: User) -> int:
    """Return the number of a user's valid tokens."""
    return Token.objects.filter(user=user, revoked_at=None, expires_at__gt=timezone.now()).count()
