"""Data: the code that jobs run. Datasets, caches, volumes and snapshots are to come."""
