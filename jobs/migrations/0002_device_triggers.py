"""Keep Device.allocated_milli equal to the sum of its unreleased allocations, in the database itself.

With the check `device_never_double_booked` this refuses a double booking by any writer.
"""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

ADD = "UPDATE controlplane_device SET allocated_milli = allocated_milli + NEW.milli_gpus WHERE id = NEW.device_id"
TAKE = "UPDATE controlplane_device SET allocated_milli = allocated_milli - OLD.milli_gpus WHERE id = OLD.device_id"

SQLITE = [
    f"""CREATE TRIGGER allocation_taken AFTER INSERT ON jobs_allocation WHEN NEW.released_at IS NULL
        BEGIN {ADD}; END""",
    f"""CREATE TRIGGER allocation_deleted AFTER DELETE ON jobs_allocation WHEN OLD.released_at IS NULL
        BEGIN {TAKE}; END""",
    f"""CREATE TRIGGER allocation_given_back AFTER UPDATE ON jobs_allocation WHEN OLD.released_at IS NULL
        BEGIN {TAKE}; END""",
    f"""CREATE TRIGGER allocation_taken_again AFTER UPDATE ON jobs_allocation WHEN NEW.released_at IS NULL
        BEGIN {ADD}; END""",
]
POSTGRESQL = [
    f"""CREATE FUNCTION keep_allocated_milli() RETURNS trigger AS $$ BEGIN
        IF TG_OP <> 'INSERT' THEN
            IF OLD.released_at IS NULL THEN {TAKE}; END IF;
        END IF;
        IF TG_OP <> 'DELETE' THEN
            IF NEW.released_at IS NULL THEN {ADD}; END IF;
        END IF;
        RETURN NULL; END $$ LANGUAGE plpgsql""",
    """CREATE TRIGGER allocation_kept AFTER INSERT OR UPDATE OR DELETE ON jobs_allocation
        FOR EACH ROW EXECUTE FUNCTION keep_allocated_milli()""",
]
STATEMENTS = {"sqlite": SQLITE, "postgresql": POSTGRESQL}


def create_triggers(_apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    for statement in STATEMENTS[editor.connection.vendor]:
        editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial"), ("controlplane", "0002_counters")]
    operations = [migrations.RunPython(create_triggers, migrations.RunPython.noop)]
