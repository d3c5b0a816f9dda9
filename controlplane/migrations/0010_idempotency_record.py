from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [('controlplane', '0009_commands_of_any_kind')]

    operations = [
        migrations.RemoveConstraint(model_name='rememberedrequest', name='remembered_once'),
        migrations.RenameModel(old_name='RememberedRequest', new_name='IdempotencyRecord'),
        migrations.AddConstraint(
            model_name='idempotencyrecord',
            constraint=models.UniqueConstraint(fields=('user', 'key'), name='one_record_per_key'),
        ),
    ]
