"""Data: datasets, versions, caches, volumes, snapshots. None of it is built yet; a job that names one is refused."""
