"""Collect the garbage of lakes: content of deleted datasets and of interrupted syncs."""

from collections.abc import Callable, Iterable
from datetime import timedelta

from django.conf import settings

from controlplane.models import Command, Project
from datasets.models import Artifact, DatasetVersion
from datasets.queries.lake import open_lake
from datasets.storage.base import Budget, Collected

COLLECT_LAKE, LAKE = "datasets.collect_lake", "lake"  # kind and subject of the commands
# Younger content is kept even if no version uses it: it belongs to a sync that is running, or was interrupted
# and may be resumed the next day.
GRACE = timedelta(days=3)
# Commits wait for a running collection, so one run is limited; the next continues.
LONGEST_SECONDS = 60.0


def collect_all_lakes(_: object = None) -> None:
    """Queue a garbage collection for each lake without an unfinished one; delete the row of the last finished
    one."""
    for key in _lake_keys():
        Command.objects.create_unless_unfinished(COLLECT_LAKE, LAKE, key)


def collect_lake(key: str, is_cancelled: Callable[[], bool]) -> Collected | None:
    """Collect the garbage of a project's lake; `key`: its primary key. Return None if the project was deleted and
    its lake removed. Raises Blocked if the lake cannot be read or changed, DeadlineExceeded after LONGEST_SECONDS,
    and what `is_cancelled` raises."""
    lake = open_lake(key)
    try:
        if not Project.objects.filter(pk=key).exists():
            # The next collection retries what cannot be removed now.
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
