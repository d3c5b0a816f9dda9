"""List the jobs whose pods each transaction changes, beside the jobs that it changes itself (migration 0007).

Updates of columns that no cycle reads, such as those of telemetry, are not listed, so these triggers are for each row:
a trigger for each statement would get all rows of those updates.
"""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

# The columns that the loop reads in every cycle.
COLUMNS = ("job_id", "attempt_id", "node_id", "rank", "name", "state", "reason", "message", "released_at")
TABLES = {"INSERT": "NEW", "DELETE": "OLD"}
EVENTS = (*TABLES, "UPDATE", "TRUNCATE")
CREATE = [
    "ALTER TABLE jobs_change ADD COLUMN is_pod boolean NOT NULL DEFAULT false",
    """CREATE FUNCTION list_jobs_of_changed_pods() RETURNS trigger AS $$ BEGIN
        INSERT INTO jobs_change (job, is_pod) SELECT DISTINCT job_id, true FROM changed;
        RETURN NULL; END $$ LANGUAGE plpgsql""",
    """CREATE FUNCTION list_job_of_changed_pod() RETURNS trigger AS $$ BEGIN
        INSERT INTO jobs_change (job, is_pod) VALUES (NEW.job_id, true);
        IF OLD.job_id <> NEW.job_id THEN INSERT INTO jobs_change (job, is_pod) VALUES (OLD.job_id, true); END IF;
        RETURN NULL; END $$ LANGUAGE plpgsql""",
    *(
        f"""CREATE TRIGGER pod_listed_{event.lower()} AFTER {event} ON jobs_pod
            REFERENCING {rows} TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION list_jobs_of_changed_pods()"""
        for event, rows in TABLES.items()
    ),
    f"""CREATE TRIGGER pod_listed_update AFTER UPDATE ON jobs_pod FOR EACH ROW
        WHEN (({", ".join(f"OLD.{name}" for name in COLUMNS)})
            IS DISTINCT FROM ({", ".join(f"NEW.{name}" for name in COLUMNS)}))
        EXECUTE FUNCTION list_job_of_changed_pod()""",
    """CREATE TRIGGER pod_listed_truncate AFTER TRUNCATE ON jobs_pod
        FOR EACH STATEMENT EXECUTE FUNCTION list_all_jobs()""",
    *(f"ALTER TABLE jobs_pod ENABLE ALWAYS TRIGGER pod_listed_{event.lower()}" for event in EVENTS),
]
DROP = [
    *(f"DROP TRIGGER pod_listed_{event.lower()} ON jobs_pod" for event in EVENTS),
    "DROP FUNCTION list_jobs_of_changed_pods, list_job_of_changed_pod",
    "ALTER TABLE jobs_change DROP COLUMN is_pod",
]


def create_triggers(_apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    _on_postgresql(editor, CREATE)


def drop_triggers(_apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    _on_postgresql(editor, DROP)


def _on_postgresql(editor: BaseDatabaseSchemaEditor, statements: list[str]) -> None:
    # On SQLite the loop reads all rows.
    for statement in statements if editor.connection.vendor == "postgresql" else ():
        editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0007_job_changes")]
    operations = [migrations.RunPython(create_triggers, drop_triggers)]
