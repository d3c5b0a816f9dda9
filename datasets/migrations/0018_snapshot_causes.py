"""Snapshots get a row for each of their causes, in place of one text with commas."""

from django.db import migrations, models


def split(apps, schema_editor):
    snapshots, causes = (apps.get_model("datasets", name) for name in ("Snapshot", "SnapshotCause"))
    if not snapshots.objects.exists():
        # A new database is made with the tables of the last migration, without the column.
        return
    rows = snapshots.objects.order_by("created_at").values_list("pk", "cause").iterator()
    causes.objects.bulk_create(
        (causes(snapshot_id=pk, cause=cause) for pk, text in rows for cause in dict.fromkeys(text.split(","))),
        batch_size=1000,
    )


def join(apps, schema_editor):
    snapshots, causes = (apps.get_model("datasets", name) for name in ("Snapshot", "SnapshotCause"))
    for snapshot in snapshots.objects.iterator():
        found = causes.objects.filter(snapshot=snapshot).order_by("pk").values_list("cause", flat=True)
        snapshots.objects.filter(pk=snapshot.pk).update(cause=",".join(found))


class Migration(migrations.Migration):

    dependencies = [
        ("datasets", "0017_snapshots_of_several_events"),
    ]

    operations = [
        migrations.CreateModel(
            name="SnapshotCause",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("cause", models.CharField(max_length=40)),
                (
                    "snapshot",
                    models.ForeignKey(
                        on_delete=models.deletion.CASCADE, related_name="cause_rows", to="datasets.snapshot"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
                "constraints": [
                    models.UniqueConstraint(fields=("snapshot", "cause"), name="snapshot_cause_once")
                ],
            },
        ),
        migrations.RunPython(split, join),
    ]
