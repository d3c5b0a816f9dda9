"""The database of a new instance, created in one pass, has the schema and the rows that the migrations make."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connection, migrations
from django.db.migrations.executor import MigrationExecutor

from controlplane.supervisor.new_database import create_tables
from tests import servers

MIGRATED = ("manage.py", "migrate", "--verbosity=0", "--skip-checks")
NEW = (
    "-c",
    "from controlplane.supervisor import prepare; assert prepare.check_settings(); prepare._migrate()",
)
KILLED_LAST = (
    "-c",
    """
import os
from controlplane.supervisor import new_database, prepare

assert prepare.check_settings()
new_database.emit_post_migrate_signal = lambda *_, **__: os.kill(os.getpid(), 9)
prepare._migrate()
""",
)
# Another process makes the database between this one's look at it and its transaction.
SECOND = (
    "-c",
    """
import subprocess
import sys
from controlplane.supervisor import prepare

assert prepare.check_settings()
from django.db import connection

begin = connection.schema_editor


def begin_second(**options):
    connection.schema_editor = begin
    subprocess.run([sys.executable, *sys.argv[1:]], check=True)
    return begin(**options)


connection.schema_editor = begin_second
prepare._migrate()
""",
    *NEW,
)


def run(arguments: tuple[str, ...], state_dir: Path, *, status: int = 0, **variables: str) -> None:
    """Run this Python with the arguments on the database of an instance. `status`: how it must end."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINYARD_", "DATABASE_"))
    }
    environment = {**kept, "TRAINYARD_STATE_DIR": str(state_dir), "TRAINYARD_CLUSTERS": "", **variables}
    environment["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    ended = subprocess.run([sys.executable, *arguments], env=environment, cwd=servers.CHECKOUT, check=False)
    assert ended.returncode == status


def parts(statement: str) -> list[str]:
    """Return the parts of a CREATE statement in order of the alphabet. Where a column stands in its table may differ,
    because the migrations add some after others; every statement names them."""
    head, _, body = statement.partition("(")
    return [head, *sorted(body.removesuffix(")").split(", "))]


def in_sqlite(path: Path) -> tuple[dict[tuple[str, str], list[str]], dict[str, list[str]]]:
    """Return an SQLite database's statements by kind and name, and its rows by table, without the times of
    migrations."""
    with closing(sqlite3.connect(path)) as opened:
        found = opened.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        tables = [name for kind, name, _ in found if kind == "table" and name != "sqlite_sequence"]
        rows = {name: sorted(rows_of(opened, name)) for name in tables}
        return {(kind, name): parts(statement) for kind, name, statement in found}, rows


def rows_of(opened: sqlite3.Connection, table: str) -> Iterator[str]:
    cursor = opened.execute(f'SELECT * FROM "{table}"')
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield str(sorted((name, value) for name, value in zip(names, row, strict=True) if name != "applied"))


def test_it_is_the_database_that_the_migrations_make(tmp_path: Path):
    for name, arguments in (("migrated", MIGRATED), ("new", NEW)):
        (tmp_path / name).mkdir()
        run(arguments, tmp_path / name)
    migrated, new = (in_sqlite(tmp_path / name / "db.sqlite3") for name in ("migrated", "new"))
    assert new == migrated


def test_a_process_that_is_killed_leaves_nothing_undone(tmp_path: Path):
    run(KILLED_LAST, tmp_path, status=-signal.SIGKILL)
    run(NEW, tmp_path)
    _, rows = in_sqlite(tmp_path / "db.sqlite3")
    assert rows["django_content_type"]
    assert rows["auth_permission"]


def test_a_second_process_uses_the_database_of_the_first(tmp_path: Path):
    run(SECOND, tmp_path)
    assert in_sqlite(tmp_path / "db.sqlite3")[1]["django_migrations"]


def test_postgresql_is_left_to_the_migrations(db: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "vendor", "postgresql")
    monkeypatch.setattr(connection.introspection, "table_names", list)
    assert not create_tables(MigrationExecutor(connection))


def test_a_database_with_tables_is_left_to_the_migrations(db: None):
    assert not create_tables(MigrationExecutor(connection))


def test_statements_of_a_migration_are_left_to_the_migrations(db: None, monkeypatch: pytest.MonkeyPatch):
    executor = MigrationExecutor(connection)
    plan = [(migrations.Migration("first", "app"), False)]
    plan[0][0].operations = [migrations.RunSQL("SELECT 1")]
    monkeypatch.setattr(executor, "migration_plan", lambda _: plan)
    monkeypatch.setattr(connection.introspection, "table_names", list)
    assert not create_tables(executor)
