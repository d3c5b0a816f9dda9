"""Django application of data: code trees, datasets, caches, volumes, snapshots and artifacts."""
