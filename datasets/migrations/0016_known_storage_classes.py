from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("datasets", "0015_cache_sharing")]

    operations = [migrations.RenameModel("StorageClassPlace", "KnownStorageClass")]
