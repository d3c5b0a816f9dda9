"""Which tests run a second time, on PostgreSQL: those that ask of the database what no other asks."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from controlplane.access import SYSTEM
from controlplane.actions.accounts import issue_token
from controlplane.models import User
from tests.builders import make_counters, make_user
from tests.statements import Recorder, commits, form, needed, pytest_collection_modifyitems, unusual

Asks = dict[str, frozenset[int]]


@pytest.mark.django_db
def test_a_record_has_what_each_test_that_passed_asked(tmp_path: Path):
    path = tmp_path / "record"
    make_counters()
    recorder = Recorder(path)
    with connection.execute_wrapper(recorder._note):
        pretend(recorder, "one", lambda: make_user("ana"))
        pretend(recorder, "the same", lambda: make_user("ben"))
        pretend(recorder, "with a long name", lambda: make_user("n" * 150))
        pretend(recorder, "at another place", lambda: issue_token(make_user("ana"), "t", actor=SYSTEM))
        pretend(recorder, "by the test alone", User.objects.count)
        pretend(recorder, "refused", _refused)
        pretend(recorder, "failed", lambda: make_user("dan"), passed=False)
        pretend(recorder, "nothing", lambda: None)
    recorder.pytest_sessionfinish()
    asked = {name: set(one["asks"]) for name, one in json.loads(path.read_text()).items()}
    assert set(asked) == {
        "one",
        "the same",
        "with a long name",
        "at another place",
        "by the test alone",
        "nothing",
    }
    assert asked["one"] == asked["the same"]
    assert asked["one"] != asked["with a long name"]
    assert not asked["one"] >= asked["at another place"]
    assert not asked["nothing"] | asked["by the test alone"]


@pytest.mark.django_db
def test_a_record_has_how_many_connections_wrote(tmp_path: Path):
    recorder, writers = Recorder(tmp_path / "record"), [object(), object()]

    def sent(sql: str, *connections: object) -> Callable[[], None]:
        def send() -> None:
            for one in connections:
                recorder._note(lambda *_: None, sql, (), False, {"connection": one})

        return send

    pretend(recorder, "reads", sent("SELECT 1", *writers))
    pretend(recorder, "one writes", sent("UPDATE a SET b = 1", writers[0], writers[0]))
    pretend(recorder, "two write", sent("INSERT INTO a VALUES (1)", *writers))
    recorder.pytest_sessionfinish()
    found = json.loads((tmp_path / "record").read_text())
    assert [one["writers"] for one in found.values()] == [0, 1, 2]


@pytest.mark.parametrize("writers", [1, 2])
def test_one_that_commits_stays_if_several_connections_wrote(tmp_path: Path, writers: int):
    path = tmp_path / "record"
    record = {"commits": {"asks": [1], "writers": writers}, "asks more": {"asks": [1, 2], "writers": 1}}
    path.write_text(json.dumps(record))
    items: list[Any] = [
        SimpleNamespace(nodeid=name, fixturenames=fixtures, get_closest_marker=lambda _: None)
        for name, fixtures in (("commits", ["transactional_db"]), ("asks more", []), ("new", []))
    ]
    config: Any = SimpleNamespace(
        getoption=lambda _: path, hook=SimpleNamespace(pytest_deselected=lambda **_: None)
    )
    pytest_collection_modifyitems(config, items)
    assert [item.nodeid for item in items] == [*["commits"] * (writers > 1), "asks more", "new"]


@pytest.mark.parametrize(
    ("recorded", "always", "stays"),
    [
        ({"a": {1}, "b": {1}}, set(), {"a"}),
        ({"a": {1}, "b": {1, 2}}, set(), {"b"}),
        ({"a": {1, 2, 3}, "b": {3, 4}, "c": {4, 5}, "d": {2, 5}}, set(), {"a", "c"}),
        ({"a": {1, 2, 3}, "b": {3, 4}}, {"b"}, {"a", "b"}),
        ({"a": {1}, "b": {1, 2}}, {"b"}, {"b"}),
        ({"a": set()}, set(), set()),
        ({"a": {1, 2, 3, 4}, "b": {1, 2, 5}, "c": {3, 4, 6}}, set(), {"b", "c"}),
        ({"a": {1, 2, 3, 4}, "b": {1, 2, 5}, "c": {3, 4, 6}}, {"a"}, {"a", "b", "c"}),
    ],
)
def test_everything_that_is_asked_is_asked_by_one_that_stays(
    recorded: dict[str, set[int]], always: set[str], stays: set[str]
):
    asks: Asks = {name: frozenset(numbers) for name, numbers in recorded.items()}
    assert needed(recorded, asks, always) == stays
    assert needed([*recorded, "new"], asks, always) == {*stays, "new"}


@pytest.mark.django_db(transaction=True)
def test_one_that_commits_is_found_by_its_marker(request: pytest.FixtureRequest):
    assert commits(request.node)


def test_one_that_commits_is_found_by_its_fixtures(request: pytest.FixtureRequest):
    assert not commits(request.node)
    request.node.fixturenames.append("transactional_db")
    assert commits(request.node)


def test_lists_of_any_length_have_one_form():
    assert form("SELECT 1 WHERE id IN (%s, %s, %s)") == form("SELECT 1 WHERE id IN (%s)")
    assert form("INSERT INTO a VALUES (%s, %s), (%s, %s)") == form("INSERT INTO a VALUES (%s, %s)")
    assert form('SAVEPOINT "s140_x1"') == form('SAVEPOINT "s141_x23"')
    assert form("SELECT a") != form("SELECT b")


def test_values_that_databases_treat_differently_are_noticed():
    assert unusual(("ana", 7, None, 2**31 - 1)) == unusual(()) == ""
    odd: list[Any] = ["n" * 32, "n" * 64, "n" * 256, "é", "\0", 2**31, 2**63, 10**60]
    assert len({unusual((value,)) for value in odd}) == len(odd)
    compared = [unusual((value,), is_written=False) for value in odd]
    assert compared[:3] == ["", "", ""]
    assert compared[3:] == [unusual((value,)) for value in odd[3:]]


def pretend(recorder: Recorder, name: str, act: Callable[[], object], *, passed: bool = True) -> None:
    """Tell the recorder of a test that did this."""
    protocol = recorder.pytest_runtest_protocol(SimpleNamespace())
    next(protocol)
    act()
    recorder.pytest_runtest_logreport(SimpleNamespace(when="call", passed=passed, nodeid=name))


def _refused() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.bulk_create([User(username="eve"), User(username="eve")])
