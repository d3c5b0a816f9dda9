"""Snapshots of earlier versions have their causes in one text with commas; a migration gives each a row."""

from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from tests.builders import make_counters, make_project
from tests.volumes import make_snapshot, make_volume

pytestmark = pytest.mark.django_db(transaction=True)
BEFORE = [("datasets", "0017_snapshots_of_several_events")]


def migrate(targets: list[tuple[str, str]]) -> MigrationExecutor:
    executor = MigrationExecutor(connection)
    executor.migrate(targets)
    return MigrationExecutor(connection)


@pytest.fixture
def newest() -> Iterator[list[tuple[str, str]]]:
    targets = [key for key in MigrationExecutor(connection).loader.graph.leaf_nodes() if key[0] == "datasets"]
    yield targets
    migrate(targets)


def test_the_causes_of_a_snapshot_are_converted_in_their_order_and_back(
    newest: list[tuple[str, str]], own_volumes
):
    make_counters()
    volume = make_volume(make_project("team-a"), files={"a": "a"})
    snapshots = [make_snapshot(volume) for _ in range(2)]
    snapshots[1].cause_rows.all().delete()
    for cause in ("success", "best_metric", "epoch"):
        snapshots[1].cause_rows.create(cause=cause)
    old = migrate(BEFORE).loader.project_state(BEFORE).apps.get_model("datasets", "Snapshot")
    assert list(old.objects.order_by("number").values_list("cause", flat=True)) == [
        "request",
        "success,best_metric,epoch",
    ]
    migrate(newest)
    assert [list(one.causes) for one in snapshots] == [["request"], ["success", "best_metric", "epoch"]]
