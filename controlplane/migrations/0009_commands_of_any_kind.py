"""Commands name a subject of any kind and may concern no cluster; which kinds there are is for their handlers to say."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models.deletion import CASCADE

SUBJECTS = {"forget_job": "job", "check_cluster": "cluster", "forget_project": "project"}


def name_subjects(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    command = apps.get_model("controlplane", "Command")
    for kind, subject in SUBJECTS.items():
        command.objects.filter(kind=kind).update(subject_kind=subject)


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0008_service_tickets")]

    operations = [
        migrations.RemoveConstraint("command", "command_kind_known"),
        migrations.RemoveConstraint("command", "command_state_known"),
        migrations.RemoveIndex("command", "command_pod"),
        migrations.RenameField("command", "pod_name", "subject_id"),
        migrations.AddField(
            "command", "subject_kind", models.CharField(max_length=32, default="pod"), preserve_default=False
        ),
        migrations.AddField("command", "sent_at", models.DateTimeField(null=True)),
        migrations.AddField("command", "progress", models.JSONField(default=dict)),
        migrations.AlterField("command", "kind", models.CharField(max_length=64)),
        migrations.AlterField("command", "state", models.CharField(max_length=9, default="pending")),
        migrations.AlterField(
            "command",
            "cluster",
            models.ForeignKey("controlplane.Cluster", CASCADE, related_name="commands", null=True),
        ),
        migrations.AddIndex(
            "command", models.Index(fields=["subject_id", "kind"], name="command_subject")
        ),
        migrations.AddConstraint(
            "command",
            models.CheckConstraint(
                condition=models.Q(state__in=["pending", "claimed", "done", "failed", "cancelled"]),
                name="command_state_known",
            ),
        ),
        migrations.RunPython(name_subjects, migrations.RunPython.noop),
    ]
