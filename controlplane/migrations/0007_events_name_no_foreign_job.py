"""Sentences of earlier versions name jobs of other projects; say the same without the names."""

from typing import Any

from django.db import migrations

PREEMPTED = "Its room went to another job. It keeps its place in the queue and restarts when there is room again."
CLUSTER_TOOK = "The cluster's scheduler took its room for other work."


def forget_names(apps: Any, schema_editor: Any) -> None:
    events = apps.get_model("controlplane", "Event").objects.filter(reason="preempted")
    events.filter(kind__startswith="job.").exclude(data__has_key="details").update(message=PREEMPTED)
    events.filter(kind__startswith="pod.").update(message=CLUSTER_TOOK)


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0006_node_extras")]

    operations = [migrations.RunPython(forget_names, migrations.RunPython.noop)]
