"""Removal of content that no version needs, so that deleted datasets and broken-off syncs do not fill the disk."""

from collections.abc import Callable, Iterable
from datetime import timedelta

from django.conf import settings
from django.db import transaction

from controlplane.models import Command, Project
from datasets.models import Artifact, DatasetVersion
from datasets.queries.lake import open_lake
from datasets.storage.base import Budget, Collected

COLLECT_LAKE, LAKE = "datasets.collect_lake", "lake"  # kind and subject of the commands
# What is younger stays, whoever needs it: a sync under way, or one that broke off and goes on the next day.
GRACE = timedelta(days=3)
# Commits to the lake wait for a collection. What is left at its end is removed by the next.
LONGEST_SECONDS = 60.0


def collect_all_lakes(_: object = None) -> None:
    """Write a command for each lake that has none under way, and remove the finished one before it."""
    for key in _lake_keys():
        with transaction.atomic():
            about = Command.objects.of_kinds([COLLECT_LAKE]).about(LAKE, key)
            if about.unfinished().exists():
                continue
            about.delete()
            Command.objects.create(kind=COLLECT_LAKE, subject_kind=LAKE, subject_id=key)


def collect_lake(key: str, is_cancelled: Callable[[], bool]) -> Collected | None:
    """Collect the lake of the project with this primary key, and remove it whole when the project is gone: None. Raises
    Blocked, DeadlineExceeded and what `is_cancelled` raises."""
    lake = open_lake(key)
    try:
        if not Project.objects.filter(pk=key).exists():
            # What cannot be removed now is tried again by the next collection.
            lake.destroy()
            return None
        return lake.collect(
            lambda: _live_manifests(key),
            older_than_seconds=GRACE.total_seconds(),
            budget=Budget(LONGEST_SECONDS, is_cancelled),
        )
    finally:
        lake.close()


def _live_manifests(key: str) -> Iterable[str]:
    versions = DatasetVersion.objects.filter(dataset__project=int(key)).values_list("manifest", flat=True)
    artifacts = Artifact.objects.filter(project=int(key)).exclude(manifest="")
    return {*versions.distinct(), *artifacts.values_list("manifest", flat=True)}


def _lake_keys() -> list[str]:
    if not settings.LAKE_DIR.is_dir():
        return []
    return sorted(path.name for path in settings.LAKE_DIR.iterdir() if path.name.isdecimal())
