"""The queries that look for open commands read the index of open commands, not the table of all that ever were."""

from collections.abc import Callable

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.commands.dispatch import _due as due_in
from controlplane.commands.outcomes import due
from controlplane.commands.registry import kinds_on, task_queues
from controlplane.models import Command

pytestmark = pytest.mark.django_db


@pytest.fixture
def history() -> None:
    """Many finished commands, one that is pending, and the database's statistics of them."""
    now = timezone.now()
    Command.objects.bulk_create(
        Command(kind="start_pod", subject_kind="pod", subject_id=str(number), state="done", finished_at=now)
        for number in range(3000)
    )
    Command.objects.create(kind="datasets.fill_cache", subject_kind="cache", subject_id="one")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def bound(rows: QuerySet[Command]) -> str:
    """The plan of a query as it is sent: with parameters, which SQLite's planner does not look into."""
    sql, values = rows.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {'QUERY PLAN ' if connection.vendor == 'sqlite' else ''}{sql}", values)
        return "; ".join(str(row[-1]) for row in cursor.fetchall())


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(
    "rows",
    [
        lambda: Command.objects.unfinished().values_list("pk")[:1],
        lambda: (
            Command.objects.filter(due(), kind__in=kinds_on(*task_queues())).order_by("pk").values_list("pk")
        ),
        lambda: Command.objects.unfinished().of_kinds(["start_pod"]).values("cluster"),
    ],
)
def test_open_commands_are_found_by_their_index(rows: Callable[[], QuerySet[Command]]):
    assert "command_open" in bound(rows())


@pytest.mark.usefixtures("history")
def test_what_is_due_is_found():
    assert due_in("data") == [Command.objects.get(subject_id="one").pk]
