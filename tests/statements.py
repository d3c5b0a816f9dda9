"""A pytest plug-in that restricts a run on a second database to tests that can give another result there.

`--record-statements=FILE` writes the statements of the product in each test that passed. `--needed-by=FILE`
leaves out tests of that record whose statements all occur in tests that stay. A statement is recorded as its line
in the product, its SQL without values, and what is unusual about the values; statements that a test itself sends
do not count. These tests always stay: those that commit on several connections, and those that the record does
not have, because they are new, were skipped, failed, or got an error from the database, after which PostgreSQL
refuses the rest of the transaction."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

ROOT = Path(__file__).resolve().parent.parent
OURS = tuple(f"{ROOT / name}/" for name in ("controlplane", "jobs", "datasets", "dashboards"))
VALUES = re.compile(r"%s(?:, %s)+")
REPEATED = re.compile(r"(\([^()]*%s[^()]*\)|WHEN \(.*?\) THEN \S+)(?:(?: |, )\1)+")
SAVEPOINT = re.compile(r'("?s\d+_x\d+"?)')
SHORT = 32  # the shortest of the columns that PostgreSQL limits and SQLite does not
INTEGER_BITS = 31
WRITES = ("INSERT", "UPDATE", "DELETE", "LOCK")

Ask = tuple[str, str, str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-statements", type=Path, help="write what each test asks of the database")
    parser.addoption("--needed-by", type=Path, help="leave out what this record shows to be asked twice")


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("--record-statements")
    if path:
        config.pluginmanager.register(Recorder(path))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path: Path | None = config.getoption("--needed-by")
    if path is None or not path.exists():
        return
    found = json.loads(path.read_text())
    recorded = {name: frozenset(one["asks"]) for name, one in found.items()}
    lonely = {name for name, one in found.items() if one["writers"] <= 1}
    always = {item.nodeid for item in items if commits(item)} - lonely
    stay = needed([item.nodeid for item in items], recorded, always)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in stay])
    items[:] = [item for item in items if item.nodeid in stay]


def needed(names: Iterable[str], recorded: Mapping[str, frozenset[int]], always: set[str]) -> set[str]:
    """Return the tests that stay: `always`, those without a record, and enough others that all recorded
    statements occur. Of the others those with the fewest statements are left out first. Run times are not used,
    since they differ between runs."""
    stay = set(names)
    counts = Counter(ask for name in stay for ask in recorded.get(name, ()))
    may_go = sorted((stay & recorded.keys()) - always, reverse=True)
    for name in sorted(may_go, key=lambda name: len(recorded[name])):
        if all(counts[ask] > 1 for ask in recorded[name]):
            stay.remove(name)
            counts.subtract(recorded[name])
    return stay


def commits(item: pytest.Item) -> bool:
    """Return whether the test commits its transactions, so that locks and other connections matter."""
    marker = item.get_closest_marker("django_db")
    is_marked = bool(marker and (marker.kwargs.get("transaction") or any(marker.args)))
    return is_marked or "transactional_db" in getattr(item, "fixturenames", ())


class Recorder:
    """Records the statements of each test, on all connections of all threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers: dict[Ask, int] = {}
        self._asked: set[Ask] = set()
        self._writers: set[BaseDatabaseWrapper] = set()
        self._is_refused = False
        self._recorded: dict[str, dict[str, Any]] = {}
        connection_created.connect(self._attach)

    def _attach(self, connection: BaseDatabaseWrapper, **_: Any) -> None:
        if self._note not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._note)

    def _note(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        values = [value for row in params for value in row] if many else params
        statement = str(sql)
        if statement.startswith(WRITES):
            self._writers.add(context["connection"])
        if at := place(sys._getframe(1)):
            odd = unusual(values or (), is_written=not statement.startswith("SELECT"))
            self._asked.add((at, form(statement), odd))
        try:
            return execute(sql, params, many, context)
        except Exception:
            self._is_refused = True
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._asked, self._writers, self._is_refused = set(), set(), False
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and not self._is_refused:
            numbers = self._numbers
            asked = sorted(numbers.setdefault(ask, len(numbers)) for ask in self._asked)
            self._recorded[report.nodeid] = {"asks": asked, "writers": len(self._writers)}
        elif not report.passed:
            self._recorded.pop(report.nodeid, None)

    def pytest_sessionfinish(self) -> None:
        connection_created.disconnect(self._attach)
        self._path.write_text(json.dumps(self._recorded))


def place(frame: FrameType | None) -> str:
    """Return the line of the product that sent the statement, as path:line; "" if a test sent it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@lru_cache(maxsize=10_000)
def form(sql: str) -> str:
    """Return the statement with a list of any length as a list of one, and without names of savepoints."""
    return REPEATED.sub(r"\1", VALUES.sub("%s", SAVEPOINT.sub("", sql)))


def unusual(values: Sequence[Any] | Mapping[str, Any], *, is_written: bool = True) -> str:
    """Return, as text, properties of the values that databases treat differently: long text in a column,
    non-ASCII or broken text, and integers beyond four bytes. `is_written`: False for a query, in which long text
    is usual."""
    found: set[str] = set()
    longest = 0
    for value in values.values() if isinstance(values, Mapping) else values:
        if isinstance(value, str):
            longest = max(longest, len(value))
            if not value.isascii():
                found.add("foreign")
            if "\0" in value:
                found.add("nul")
        elif isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            found.add(f"{(value.bit_length() + 1) // 32}")
    if is_written and longest >= SHORT:
        found.add(f"long {longest.bit_length()}")
    return " ".join(sorted(found))
