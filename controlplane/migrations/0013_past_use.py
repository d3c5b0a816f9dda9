from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("controlplane", "0012_spot_nodes"),
    ]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="usage_half_life_hours",
            field=models.PositiveSmallIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="project",
            name="recent_usage",
            field=models.FloatField(null=True),
        ),
    ]
