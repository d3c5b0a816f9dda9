"""Create the SQLite database of a new instance in one pass: each table as the last migration leaves it.

Run one after the other, most of the time of the migrations is Django's, which builds the models anew for each
operation (`python -m bench.up`, the first start). PostgreSQL keeps names of indexes of what was renamed, so a
database made in one pass would differ from others there.
"""

from collections.abc import Iterator, Sequence

from django.core.management.sql import emit_post_migrate_signal
from django.db.migrations import Migration, RunPython
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.operations import fields, models
from django.db.migrations.operations.base import Operation
from django.db.models import Model

# Operations whose effect on the schema is in the state of the models after the last migration.
IN_THE_MODELS = frozenset({fields.__name__, models.__name__})


def create_tables(executor: MigrationExecutor) -> bool:
    """Create the tables, run what the migrations run in Python, and record all migrations as applied, in one
    transaction. Return False without doing anything if the database has tables or is not SQLite, or a migration has an
    operation that needs the others before it; the caller then migrates."""
    connection = executor.connection
    if connection.vendor != "sqlite" or connection.introspection.table_names():
        return False
    last = executor.loader.graph.leaf_nodes()
    plan = [migration for migration, _ in executor.migration_plan(last)]
    if not all(map(_is_possible, _operations(plan))):
        return False
    state = executor.loader.project_state(last)
    tables: list[type[Model]] = [executor.recorder.Migration, *state.apps.get_models()]
    with connection.schema_editor(atomic=True) as editor:
        # Another process may have made them since; the transaction has waited for it.
        if connection.introspection.table_names():
            return False
        for table in tables:
            if table._meta.can_migrate(connection):
                editor.create_model(table)
        for migration in plan:
            for operation in migration.operations:
                if isinstance(operation, RunPython):
                    operation.database_forwards(migration.app_label, editor, state, state)
            for app, name in migration.replaces or [(migration.app_label, migration.name)]:
                executor.recorder.record_applied(app, name)
        # In the transaction too: it adds rows, and no later start does, because no migration is missing then.
        emit_post_migrate_signal(0, False, connection.alias, apps=state.apps)
    return True


def _operations(plan: Sequence[Migration]) -> Iterator[Operation]:
    return (operation for migration in plan for operation in migration.operations)


def _is_possible(operation: Operation) -> bool:
    return isinstance(operation, RunPython) or type(operation).__module__ in IN_THE_MODELS
