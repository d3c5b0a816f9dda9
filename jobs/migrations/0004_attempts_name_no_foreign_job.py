"""Replace stored preemption messages, which name jobs of other projects, by ones that name none."""

from typing import Any

from django.db import migrations

PREEMPTED = "Its room went to another job. It keeps its place in the queue and restarts when there is room again."
CLUSTER_TOOK = "The cluster's scheduler took its room for other work."


def forget_names(apps: Any, schema_editor: Any) -> None:
    for model in ("Attempt", "Job"):
        apps.get_model("jobs", model).objects.filter(reason="preempted").update(message=PREEMPTED)
    apps.get_model("jobs", "Pod").objects.filter(reason="preempted").update(message=CLUSTER_TOOK)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0003_elastic")]

    operations = [migrations.RunPython(forget_names, migrations.RunPython.noop)]
