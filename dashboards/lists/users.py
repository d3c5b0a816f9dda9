"""The list of users, for admins."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Case, Count, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from controlplane.access import Actor
from controlplane.models import Membership, User
from dashboards.lists import cells
from dashboards.lists.columns import number_column, time_column
from dashboards.lists.table import Column, Filter, ListView, Row, Text, counted, in_order
from jobs.models import Job

LOCKED, ADMIN, ACTIVE = range(3)
STATES: dict[str, tuple[Q, Text]] = {
    "locked": (Q(is_active=False), _("Locked")),
    "admin": (Q(is_active=True, is_admin=True), _("Admin")),
    "active": (Q(is_active=True, is_admin=False), _("Active")),
}


def _rows(actor: Actor, pks: Sequence[Any]) -> list[Row]:
    users = in_order(User.objects.all(), pks)
    projects = dict(
        Membership.objects.filter(user__in=pks).order_by().values_list("user_id").annotate(Count("pk"))
    )
    unfinished = Job.objects.filter(user__in=pks).unfinished().order_by()
    jobs = dict(unfinished.values_list("user_id").annotate(Count("pk")))
    return [
        {
            "key": user.username,
            "name": user.username,
            "email": user.email,
            "is_active": user.is_active,
            "is_admin": user.is_admin,
            "last_login": user.last_login,
            "created_at": user.created_at,
            "projects": projects.get(user.pk, 0),
            "jobs": jobs.get(user.pk, 0),
        }
        for user in users
    ]


def _state(row: Row) -> str:
    if not row["is_active"]:
        return cells.badge("bad", gettext("Locked"))
    if row["is_admin"]:
        return cells.badge("accent", gettext("Admin"))
    return format_html('<span class="second">{}</span>', gettext("Active"))


def _by_state(at: datetime) -> Case:
    return Case(*(When(found, then=Value(rank)) for rank, (found, _label) in enumerate(STATES.values())))


def _projects(at: datetime) -> Any:
    counted = (
        Membership.objects.filter(user=OuterRef("pk")).order_by().values("user").annotate(found=Count("pk"))
    )
    return Coalesce(Subquery(counted.values("found")), 0)


def _jobs(at: datetime) -> Any:
    unfinished = Job.objects.filter(user=OuterRef("pk")).unfinished().order_by()
    return Coalesce(Subquery(unfinished.values("user").annotate(found=Count("pk")).values("found")), 0)


def _in_state(users: QuerySet[User], state: str) -> QuerySet[User]:
    return users.filter(STATES[state][0]) if state in STATES else users.none()


USERS = ListView(
    name="users",
    unique="username",
    rows=_rows,
    summary=counted(ngettext_lazy("{count} user", "{count} users")),
    filters=(
        Filter(
            "q",
            _("Name or mail contains"),
            lambda users, text: users.filter(Q(username__icontains=text) | Q(email__icontains=text)),
        ),
        Filter(
            "state",
            _("Any state"),
            _in_state,
            lambda actor: [(name, label) for name, (_found, label) in STATES.items()],
        ),
    ),
    columns=(
        Column("name", _("Name"), cells.linked("user", "name"), "username"),
        Column("mail", _("Mail"), cells.text("email"), "email", "quiet break aside"),
        Column("state", _("State"), _state, _by_state),
        number_column("projects", _("Projects"), "projects", _projects),
        number_column("jobs", _("Unfinished jobs"), "jobs", _jobs),
        time_column("signed-in", _("Signed in"), "last_login", never=_("never")),
        time_column("since", _("Since"), "created_at", "quiet nowrap aside"),
    ),
)
