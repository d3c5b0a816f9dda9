"""The database of a new instance, created in one pass, has the schema and the rows that the migrations make."""

import os
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


def run(arguments: tuple[str, ...], state_dir: Path, **variables: str) -> None:
    """Run this Python with the arguments on the database of an instance."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINYARD_", "DATABASE_"))
    }
    environment = {**kept, "TRAINYARD_STATE_DIR": str(state_dir), "TRAINYARD_CLUSTERS": "", **variables}
    environment["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    subprocess.run([sys.executable, *arguments], env=environment, cwd=servers.CHECKOUT, check=True)


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
