"""The caches of a location as the commands use them: a directory, or a volume on which a pod works."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, cast
from uuid import UUID

from django.conf import settings
from django.db.models import F

from controlplane.commands.run import CommandRun
from controlplane.config.service_tokens import cache_token
from controlplane.loop.engine_pool import engine_for
from controlplane.models import Cluster
from datasets.long_work import LAKE_AWAY, budget_of
from datasets.manifests import Manifest
from datasets.models import Cache, CacheLocation, DatasetVersion
from datasets.queries.cache_locations import claim_of, crowded_words, locations_of
from datasets.queries.caches import reported_keys, store_of
from datasets.queries.code import control_url
from datasets.queries.lake import manifest_named
from datasets.storage.base import UNLIMITED, Blocked, Budget, ContentMissing, Lake
from datasets.storage.claims import CacheClaim, CacheTask
from datasets.storage.contents import Sharing
from datasets.storage.tree_fill import Progress, Report, silent

# Codes of Blocked for which a fill is retried without limit: the lake is away, or another task uses the volume.
WAITED_FOR = (*LAKE_AWAY, "in_use", "pod_deleted")
# Codes of Blocked: no pod can fill a volume for the nodes of its location.
NO_NODES, SEVERAL_NODES = "no_nodes", "several_nodes"


class Caches(Protocol):
    """Interface of the caches of a location, implemented by CacheStore and VolumeCaches."""

    def manifests(self) -> Mapping[str, Manifest]:
        """Return the manifests of all complete trees, by key."""

    def lacking_bytes(self, manifest: Manifest) -> int:
        """Return the bytes of contents that a fill would have to copy."""

    def fill(
        self,
        key: str,
        lake: Lake,
        manifest: Manifest,
        budget: Budget = ...,
        report: Report = ...,
        on_usable: Callable[[], None] | None = ...,
    ) -> None:
        """Create the tree of a version, unless it exists. `on_usable`: called when jobs may use it, which may be before
        it is flushed. Raises ContentMissing or ContentDamaged if the lake lacks a content or has it damaged, Blocked
        if the copy cannot be written or flushed, and what `budget` and `on_usable` raise."""

    def remove(self, key: str, is_wanted: Callable[[], bool] = ...) -> int:
        """Remove a tree with the contents that no other tree uses, unless `is_wanted` returns True. Return
        the bytes freed."""


class Volume(Protocol):
    """A cache volume of a project (implemented by engines.kubernetes.cache_volume)."""

    def run(
        self, task: CacheTask, budget: Budget, report: Callable[[int, int, int], None] = ...
    ) -> Sequence[str]:
        """Run a task in a pod and return the keys of the trees that exist afterwards. `report` receives the files and
        bytes that are present, and the bytes downloaded. Raises Blocked if the pod cannot run or fails, ContentMissing
        if the server lacks a content, and what `budget` raises."""

    def trouble(self) -> str:
        """Return the problem of the volume's claim, a code of storage.claims; "" for none. Raises Blocked if the
        cluster refuses the request."""

    def delete(self) -> None:
        """Delete the volume's claim with its content. Safe to repeat. Raises Blocked if the cluster refuses the
        request."""


class VolumeEngine(Protocol):
    """Additional methods of engines whose kind has `claims_volumes`."""

    def caches(self, project: str, claim: CacheClaim) -> Volume:
        """Return a handle on a volume for a project's caches, with the name, class and size of `claim`. Sends no
        request; the claim may not exist yet."""


def caches_of(location: CacheLocation, run: CommandRun) -> Caches:
    """Return the caches of a location, for use in the command of `run`. Raises Blocked if the directory cannot be used.
    For a volume no cluster is opened yet: `fill` and `remove` of the result raise EngineUnreachable."""
    return store_of(location) if location.project is None else VolumeCaches(location, run)


def volume_of(location: CacheLocation) -> Volume:
    """Return a handle on the volume of a project's location, as `claimed_volume` does."""
    assert location.project is not None
    return claimed_volume(location.cluster, location.project.name, claim_of(location))


def claimed_volume(cluster: Cluster, project: str, claim: CacheClaim) -> Volume:
    """Return a handle on the cache volume of a project with this claim. Sends no request; the claim may not exist yet.
    Raises EngineUnreachable if the cluster's engine cannot be opened."""
    return cast(VolumeEngine, engine_for(cluster)).caches(project, claim)


def _check_nodes(location: CacheLocation) -> None:
    """Raise Blocked if the location has no usable node, or several for a ReadWriteOnce volume."""
    if not locations_of(location.cluster):
        return
    claim = claim_of(location)
    if not claim.nodes:
        raise Blocked(NO_NODES, f"No node that {location.name} serves is ready and open for pods.")
    if claim.access_mode == CacheLocation.ONE_NODE and len(claim.nodes) > 1:
        raise Blocked(SEVERAL_NODES, crowded_words(location.name, len(claim.nodes)))


class VolumeCaches:
    """The caches on a project's volume. Its content is known only from the report of the last pod that worked
    there."""

    def __init__(self, location: CacheLocation, run: CommandRun) -> None:
        self._location, self._run = location, run

    def manifests(self) -> dict[str, Manifest]:
        """Return the manifests of all trees whose versions exist; omits one whose manifest the lake has
        lost."""
        rows = DatasetVersion.objects.filter(pk__in=reported_keys(self._location))
        found = {}
        for version in rows.select_related("dataset__project"):
            with suppress(ContentMissing):
                found[str(version.pk)] = manifest_named(version.dataset.project, version.manifest)
        return found

    def lacking_bytes(self, manifest: Manifest) -> int:
        """Return the bytes of contents that no tree on the volume has, which a fill would have to download."""
        known = {name for other in self.manifests().values() for name in other.stored_sizes}
        return sum(size for name, size in manifest.stored_sizes.items() if name not in known)

    def fill(
        self,
        key: str,
        lake: Lake,
        manifest: Manifest,
        budget: Budget = UNLIMITED,
        report: Report = silent,
        on_usable: Callable[[], None] | None = None,
    ) -> None:
        """Fill a cache by a pod, which downloads the content through the control plane; see Caches.fill. Raises
        also ContentMissing if the cache was removed, Blocked if the location has no usable node, or several for
        one ReadWriteOnce volume."""
        cache = Cache.objects.filter(version=UUID(key), location=self._location).first()
        if cache is None:
            raise ContentMissing("The cache was removed meanwhile.")
        _check_nodes(self._location)
        cluster = self._location.cluster
        task = CacheTask(
            str(self._run.command.pk),
            self._kept(),
            key,
            f"{control_url(cluster)}/api/v1/pod-data/{cache.pk}",
            cache_token(settings.SECRET_KEY, str(cache.pk)),
            manifest.hash,
        )

        def say(files: int, bytes_done: int, bytes_moved: int) -> None:
            # The pod gets contents over the network.
            report(Progress(files, bytes_done, bytes_moved, Sharing.COPY if bytes_moved else None))

        self._work(task, budget, say)
        if on_usable is not None:
            on_usable()

    def remove(self, key: str, is_wanted: Callable[[], bool] = lambda: False) -> int:
        """Have a pod remove every tree that has no cache row, whatever its `key`, unless `is_wanted` returns True; once
        the project has moved to another cluster, only forget its trees. Return the bytes that the volume used before,
        as an upper bound of what is freed; 0 if nothing was done."""
        project = self._location.project
        if is_wanted() or project is None:
            return 0
        before = self._location.used_bytes
        if project.cluster_id != self._location.cluster_id:
            # The project has moved to another cluster; its namespace was deleted with this volume.
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
        keys = volume_of(self._location).run(task, budget, report)
        # If the project has moved since, the volume is gone.
        here = CacheLocation.objects.filter(pk=self._location.pk, project__cluster=F("cluster"))
        here.update(kept_keys=list(keys))
