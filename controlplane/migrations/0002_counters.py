"""The two numbers that only grow: of events and of submissions."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


def add_counters(apps: StateApps, _editor: BaseDatabaseSchemaEditor) -> None:
    counter = apps.get_model("controlplane", "Counter")
    for name in ("event", "submission"):
        counter.objects.get_or_create(name=name)


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0001_initial")]
    operations = [migrations.RunPython(add_counters, migrations.RunPython.noop)]
