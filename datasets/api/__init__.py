"""REST views of code trees, datasets, caches, volumes, snapshots and artifacts."""
