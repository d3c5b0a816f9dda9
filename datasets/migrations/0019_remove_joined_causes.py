"""The joined text goes. Apart from the copy: PostgreSQL changes no table with rows that wait for their checks."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("datasets", "0018_snapshot_causes"),
    ]

    operations = [
        # With a default, so that the migration can be undone.
        migrations.AlterField(
            model_name="snapshot", name="cause", field=models.CharField(default="", max_length=40)
        ),
        migrations.RemoveField(model_name="snapshot", name="cause"),
    ]
