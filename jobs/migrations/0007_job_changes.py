"""List the jobs that each transaction changes, so that the loop need not look for them among all rows.

The table needs no log of its own: after a crash, which empties it, all rows are read (jobs/row_cache.py). One entry
without a job stands for all jobs. The triggers also run for a replication worker, and so see every writer.
"""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

EVENTS = {"INSERT": "NEW", "UPDATE": "NEW", "DELETE": "OLD"}
CREATE = [
    """CREATE UNLOGGED TABLE jobs_change (
        xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
        job uuid,
        at timestamp with time zone NOT NULL DEFAULT statement_timestamp())""",
    "CREATE INDEX jobs_change_xid ON jobs_change (xid)",
    """CREATE FUNCTION list_changed_jobs() RETURNS trigger AS $$ BEGIN
        INSERT INTO jobs_change (job) SELECT id FROM changed;
        RETURN NULL; END $$ LANGUAGE plpgsql""",
    """CREATE FUNCTION list_all_jobs() RETURNS trigger AS $$ BEGIN
        INSERT INTO jobs_change DEFAULT VALUES;
        RETURN NULL; END $$ LANGUAGE plpgsql""",
    *(
        f"""CREATE TRIGGER job_listed_{event.lower()} AFTER {event} ON jobs_job
            REFERENCING {rows} TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION list_changed_jobs()"""
        for event, rows in EVENTS.items()
    ),
    """CREATE TRIGGER job_listed_truncate AFTER TRUNCATE ON jobs_job
        FOR EACH STATEMENT EXECUTE FUNCTION list_all_jobs()""",
    *(
        f"ALTER TABLE jobs_job ENABLE ALWAYS TRIGGER job_listed_{event.lower()}"
        for event in (*EVENTS, "TRUNCATE")
    ),
]
DROP = [
    *(f"DROP TRIGGER job_listed_{event.lower()} ON jobs_job" for event in (*EVENTS, "TRUNCATE")),
    "DROP FUNCTION list_changed_jobs, list_all_jobs",
    "DROP TABLE jobs_change",
]


def create_list(_apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    _on_postgresql(editor, CREATE)


def drop_list(_apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    _on_postgresql(editor, DROP)


def _on_postgresql(editor: BaseDatabaseSchemaEditor, statements: list[str]) -> None:
    # On SQLite the loop reads all rows.
    for statement in statements if editor.connection.vendor == "postgresql" else ():
        editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0006_start_estimates")]
    operations = [migrations.RunPython(create_list, drop_list)]
