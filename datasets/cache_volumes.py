"""The caches of a location for the commands about them: a directory, or a volume on which a pod works."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, cast
from uuid import UUID

from django.conf import settings
from django.db.models import F

from controlplane.commands.run import CommandRun
from controlplane.config.service_tokens import cache_token
from controlplane.loop.engine_pool import engine_for
from datasets.long_work import budget_of
from datasets.manifests import Manifest
from datasets.models import Cache, CacheLocation, DatasetVersion
from datasets.queries.caches import keys_at, store_of
from datasets.queries.code import control_url
from datasets.queries.lake import manifest_named
from datasets.storage.base import UNLIMITED, Budget, ContentMissing, Lake
from datasets.storage.cache import Progress, Report, contents_of
from datasets.storage.claims import CacheTask

# Codes of Blocked after which a fill is tried again without end: a server is away, or another task has the volume.
WAITED_FOR = ("unreachable", "in_use", "pod_deleted")


class Caches(Protocol):
    """The caches of a location (CacheStore, VolumeCaches)."""

    def manifests(self) -> Mapping[str, Manifest]:
        """Return the manifests of all trees that are whole."""

    def lacking_bytes(self, manifest: Manifest) -> int:
        """Return the bytes of contents that a fill would have to bring."""

    def fill(
        self, key: str, lake: Lake, manifest: Manifest, budget: Budget = ..., report: Report = ...
    ) -> None:
        """Make a version's tree; one that is there is left. Raises ContentMissing, ContentDamaged, Blocked and what
        `budget` raises."""

    def remove(self, key: str, is_wanted: Callable[[], bool] = ...) -> int:
        """Remove a tree with the contents that no other one names, unless `is_wanted`. Return the bytes freed."""


class Volume(Protocol):
    """The volume of a project (engines.kubernetes.cache_volume)."""

    def run(
        self, task: CacheTask, budget: Budget, report: Callable[[int, int, int], None] = ...
    ) -> Sequence[str]:
        """Carry a task out and return the trees that are there afterwards. Raises Blocked, ContentMissing and what
        `budget` raises."""


class VolumeEngine(Protocol):
    """What the engine of a kind with `claims_volumes` does beside the rest."""

    def caches(self, project: str) -> Volume:
        """Return the volume of a project's caches."""


def caches_of(location: CacheLocation, run: CommandRun) -> Caches:
    """Return the caches of a location for a command. Raises Blocked, EngineUnreachable."""
    return store_of(location) if location.project is None else VolumeCaches(location, run)


class VolumeCaches:
    """The caches on the volume of a project. What is there is known from the last pod that worked on it."""

    def __init__(self, location: CacheLocation, run: CommandRun) -> None:
        self._location, self._run = location, run

    def manifests(self) -> dict[str, Manifest]:
        """Return the manifests of all trees whose versions exist; one that the lake has lost is left out."""
        rows = DatasetVersion.objects.filter(pk__in=keys_at(self._location))
        found = {}
        for version in rows.select_related("dataset__project"):
            with suppress(ContentMissing):
                found[str(version.pk)] = manifest_named(version.dataset.project, version.manifest)
        return found

    def lacking_bytes(self, manifest: Manifest) -> int:
        """Return the bytes of contents that no other tree names."""
        known = {name for other in self.manifests().values() for name in contents_of(other)}
        return sum(size for name, size in contents_of(manifest).items() if name not in known)

    def fill(
        self,
        key: str,
        lake: Lake,
        manifest: Manifest,
        budget: Budget = UNLIMITED,
        report: Report = lambda progress: None,
    ) -> None:
        """Have a pod bring a version; see Caches.fill. The pod reads the lake through the control plane."""
        cache = Cache.objects.filter(version=UUID(key), location=self._location).first()
        if cache is None:
            raise ContentMissing("The cache was removed meanwhile.")
        cluster = self._location.cluster
        task = CacheTask(
            str(self._run.command.pk),
            self._kept(),
            key,
            f"{control_url(cluster)}/api/v1/pod-data/{cache.pk}",
            cache_token(settings.SECRET_KEY, str(cache.pk)),
            manifest.hash,
        )
        self._work(task, budget, lambda *counts: report(Progress(*counts)))

    def remove(self, key: str, is_wanted: Callable[[], bool] = lambda: False) -> int:
        """Have a pod remove every tree without a cache; see Caches.remove."""
        project = self._location.project
        if is_wanted() or project is None:
            return 0
        before = self._location.used_bytes
        if project.cluster_id != self._location.cluster_id:
            # The project has moved, and its namespace went with all that was in it.
            CacheLocation.objects.filter(pk=self._location.pk).update(kept_keys=[])
            return before
        self._work(CacheTask(str(self._run.command.pk), self._kept()), budget_of(self._run))
        return before

    def _kept(self) -> list[str]:
        rows = Cache.objects.filter(location=self._location).exclude(state=Cache.EVICTING)
        return sorted(map(str, rows.values_list("version_id", flat=True)))

    def _work(
        self, task: CacheTask, budget: Budget, report: Callable[[int, int, int], None] = lambda *counts: None
    ) -> None:
        assert self._location.project is not None
        engine = cast(VolumeEngine, engine_for(self._location.cluster))
        keys = engine.caches(self._location.project.name).run(task, budget, report)
        # Where the project moved meanwhile, the volume is gone.
        here = CacheLocation.objects.filter(pk=self._location.pk, project__cluster=F("cluster"))
        here.update(kept_keys=list(keys))
