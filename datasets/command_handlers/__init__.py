"""Command handlers of data, which run on a Celery queue of their own. Importing the modules registers theirs."""

from datasets.command_handlers import (
    artifacts,
    caches,
    code_imports,
    lake_collection,
    registrations,
    snapshots,
    volume_readings,
    volumes,
)

DECLARED = (
    artifacts,
    caches,
    code_imports,
    lake_collection,
    registrations,
    snapshots,
    volume_readings,
    volumes,
)
