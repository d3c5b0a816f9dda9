"""Data: datasets, versions, caches, volumes and snapshots. Nothing of it is built yet; a job that names one is refused."""
