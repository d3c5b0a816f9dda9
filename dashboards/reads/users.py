"""Users and their memberships."""

from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane.access import Actor, visible_projects
from controlplane.models import Membership, Project, Token, User
from jobs.lifecycle import ACTIVE_STATES, FINAL_STATES
from jobs.models import Job

Row = dict[str, Any]


def visible_user(actor: Actor, username: str) -> User | None:
    """Return a user visible to the actor: oneself, fellow members of a project, any user for an admin; else None."""
    users: QuerySet[User] = User.objects.filter(username=username)
    if not actor.is_admin:
        users = users.filter(
            Q(pk=actor.user.pk if actor.user else None) | Q(memberships__project__in=visible_projects(actor))
        )
    return users.distinct().first()


def memberships(actor: Actor, user: User) -> list[Row]:
    """Return the user's roles in projects that the actor sees."""
    rows = Membership.objects.filter(user=user, project__in=visible_projects(actor)).order_by("project__name")
    return [{**row} for row in rows.values("project__name", "project__palette_index", "role")]


def unfinished_jobs(user: User, project: Project | None = None) -> tuple[int, int]:
    """Return how many jobs of a user may hold GPUs, and how many others are unfinished; in one project or in all."""
    jobs = Job.objects.filter(user=user).exclude(state__in=FINAL_STATES)
    jobs = jobs if project is None else jobs.filter(project=project)
    active = jobs.filter(state__in=ACTIVE_STATES).count()
    return active, jobs.count() - active


def live_tokens(user: User) -> int:
    """Return how many tokens of a user are accepted now."""
    return Token.objects.filter(user=user, revoked_at=None, expires_at__gt=timezone.now()).count()
