"""Page views of datasets, caches, volumes, snapshots, artifacts and lineage."""
