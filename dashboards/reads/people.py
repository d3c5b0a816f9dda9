"""Users, memberships, tokens."""

from collections.abc import Mapping
from typing import Any

from django.db.models import Count, Q, QuerySet

from controlplane.access import Actor, visible_jobs, visible_project_names, visible_projects
from controlplane.models import Membership, Token, User
from dashboards.reads.paging import NamePage, by_name
from dashboards.reads.projects import palette
from jobs.lifecycle import FINAL_STATES
from jobs.models import Job
from jobs.queries import job_rows

__all__ = ["jobs_of", "memberships", "palette", "token_rows", "user_page", "visible_user"]
Row = dict[str, Any]
LATEST = 20


def user_page(asked: Mapping[str, str]) -> tuple[list[Row], NamePage[User]]:
    """A page of users by name, with counts of projects and unfinished jobs."""
    page = by_name(User.objects.all(), "username", asked)
    ids = [user.pk for user in page.items]
    projects = dict(
        Membership.objects.filter(user__in=ids).values_list("user_id").annotate(count=Count("pk")).order_by()
    )
    unfinished = Job.objects.filter(user__in=ids).exclude(state__in=FINAL_STATES).values_list("user_id")
    jobs = dict(unfinished.annotate(count=Count("pk")).order_by())
    rows = [
        {"user": user, "project_count": projects.get(user.pk, 0), "job_count": jobs.get(user.pk, 0)}
        for user in page.items
    ]
    return rows, page


def visible_user(actor: Actor, username: str) -> User | None:
    """A user whom the actor may see: oneself, fellow members of a project, everybody for an admin."""
    users: QuerySet[User] = User.objects.filter(username=username)
    if not actor.is_admin:
        users = users.filter(
            Q(pk=actor.user.pk if actor.user else None) | Q(memberships__project__in=visible_projects(actor))
        )
    return users.distinct().first()


def memberships(actor: Actor, user: User) -> list[Row]:
    """The user's roles in projects that the actor sees."""
    rows = Membership.objects.filter(user=user, project__in=visible_projects(actor)).order_by("project__name")
    return [{**row} for row in rows.values("project__name", "project__palette_index", "role")]


def jobs_of(actor: Actor, user: User) -> list[Row]:
    """The user's latest jobs that the actor sees."""
    jobs = visible_jobs(actor).filter(user=user).order_by("-submit_rank")[:LATEST]
    return job_rows(jobs, visible_project_names(actor))


def token_rows(actor: Actor) -> list[Row]:
    """The actor's own tokens, newest first; revoked ones are left out."""
    tokens = Token.objects.filter(user=actor.user, revoked_at=None).order_by("-created_at")
    return [
        {**row}
        for row in tokens.values(
            "id", "name", "prefix", "is_read_only", "created_at", "expires_at", "last_used_at"
        )
    ]
