"""Command handlers of data, which run on a Celery queue of their own."""

from datasets.command_handlers import (  # noqa: F401  registering is their effect
    artifacts,
    caches,
    code_imports,
    lake_collection,
    registrations,
    snapshots,
    volume_readings,
    volumes,
)
