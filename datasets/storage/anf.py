"""Volumes of Azure NetApp Files, with its own snapshots; a restore is a new volume created from a snapshot.

Name and tag of a volume contain our id; a volume with our name but another tag is not ours, and is neither
used nor deleted. A service tier is a capacity pool; changing it moves the volume, which stays mounted.

Azure deletes a volume together with its snapshots, but our snapshots outlive their volume. A removed volume
is therefore `retired`: no longer exported, and deleted with its last snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets.storage.anf_client import NOT_FOUND, AnfClient, AnfRefused, Row
from datasets.storage.anf_driver import AnfConfig
from datasets.storage.base import UNLIMITED, Blocked, Budget, ContentMissing
from datasets.storage.classes import StorageClass
from datasets.storage.volume_files import VolumeFiles, remove_own, wait_until_mounted
from datasets.storage.volumes import BlockSnapshots, Cut, Report, silent

# How long a new volume may take to appear in this machine's mount.
MOUNT_SECONDS = 60.0
GIB = 1 << 30
_PREFIX = "trainyard-"
_OURS, _RETIRED = "trainyard-volume", "trainyard-retired"


def open_class(found: StorageClass, project_id: int, size_bytes: int, service_tier: str) -> AnfVolumes:
    """Return the volumes of the storage class `found`, which all projects share: `project_id` is not used.
    `size_bytes`, `service_tier`: those of volumes that it creates."""
    config = found.config if isinstance(found.config, AnfConfig) else None
    return AnfVolumes(AnfClient(config, found.name), found.directory, size_bytes, service_tier)


class AnfVolumes(BlockSnapshots, VolumeFiles):
    """The volumes and snapshots of one storage class. `size_bytes`, `service_tier`: size and tier of volumes that it
    creates."""

    def __init__(
        self,
        client: AnfClient,
        root: Path,
        size_bytes: int = 0,
        service_tier: str = "",
        mount_seconds: float = MOUNT_SECONDS,
    ) -> None:
        self._client, self._root = client, root
        self._size_bytes, self._tier, self._mount_seconds = size_bytes, service_tier, mount_seconds

    def path(self, volume: str) -> Path:
        """Return the directory of a volume, which jobs mount."""
        return self._root / object_name(volume)

    def provision(self, volume: str, budget: Budget = UNLIMITED) -> None:
        """Create an empty volume, unless it exists, and wait until it is mounted. Raises Blocked with Azure's
        message or if it is not mounted in time, and what `budget` raises."""
        self._make(volume, {}, budget)

    def clone(self, volume: str, source: str, budget: Budget = UNLIMITED, report: Report = silent) -> None:
        """Create a volume from a new snapshot of another one. Raises ContentMissing if there is no `source`, Blocked
        if the storage system refuses, and what `budget` raises."""
        base, origin = f"{_PREFIX}base-{volume}", dict[str, Any]()
        if self._find(volume) is None:
            origin = _made_of(self._snapshot(base, self._source(source), budget))
        self._make(volume, origin, budget)
        remove_own(self.path(volume))
        # Azure needs the snapshot while it copies; afterwards it is deleted with its volume.
        with suppress(Blocked):
            found = self._find(source)
            if found is not None and self._snapshot_named(base, found) is not None:
                self._client.delete_snapshot(*_pool_and_name(found), base)

    def restore(
        self, volume: str, snapshot: str, budget: Budget = UNLIMITED, report: Report = silent
    ) -> None:
        """Create a volume from a snapshot, which stays. Raises ContentMissing if there is no such snapshot,
        Blocked if the storage system refuses, and what `budget` raises."""
        found = self._with_snapshot(snapshot)
        if found is None:
            raise ContentMissing("The snapshot is not in Azure NetApp Files (any more).")
        self._make(volume, _made_of(found[1]), budget)
        remove_own(self.path(volume))

    def remove(self, volume: str) -> None:
        """Stop exporting a volume, and delete it unless it has snapshots. Does nothing for a missing one. Raises
        Blocked if Azure refuses or does not answer."""
        found = self._named(volume)
        if found is None or not _is_ours(found, volume):
            return
        if not _is_retired(found):
            tags = {**(found.get("tags") or {}), _RETIRED: volume}
            body = {"tags": tags, "properties": {"exportPolicy": {"rules": []}}}
            self._client.change(*_pool_and_name(found), body)
        self._delete_unless_kept(found)

    def resize(self, volume: str, size_bytes: int, budget: Budget = UNLIMITED) -> None:
        """Change the size of a volume to `size_bytes`. Raises ContentMissing if there is no such volume, Blocked
        if the storage system refuses, and what `budget` raises."""
        found = self._source(volume)
        if _size(found) != _rounded(size_bytes):
            body = {"properties": {"usageThreshold": _rounded(size_bytes)}}
            self._client.change(*_pool_and_name(found), body, budget)

    def retier(self, volume: str, service_tier: str, budget: Budget = UNLIMITED) -> None:
        """Move a volume to the capacity pool of another service tier; it stays mounted. Raises as `resize`."""
        found = self._source(volume)
        pool, name = _pool_and_name(found)
        wanted = self._pool(service_tier)
        if pool != wanted:
            _refuse_running(found)
            self._client.move(pool, name, wanted, budget)

    def _take(self, snapshot: str, volume: str, budget: Budget, cut: Cut) -> int:
        found = self._source(volume)
        self._snapshot(object_name(snapshot), found, budget)
        # Azure does not report a snapshot's size.
        return _size(found)

    def has_snapshot(self, snapshot: str) -> bool:
        """Return whether Azure has a snapshot. Raises Blocked if it refuses."""
        return self._with_snapshot(snapshot) is not None

    def remove_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot, and its retired volume if it was the last one. Raises Blocked if Azure refuses, also
        while it copies the snapshot."""
        found = self._with_snapshot(snapshot)
        if found is not None:
            volume, _ = found
            self._client.delete_snapshot(*_pool_and_name(volume), object_name(snapshot))
        # Also if a killed process had deleted the last snapshot of a retired volume.
        for volume in self._all():
            if _is_retired(volume):
                with suppress(Blocked):
                    self._delete_unless_kept(volume)

    def _make(self, volume: str, origin: Row, budget: Budget) -> None:
        """Create a volume, unless it exists, and wait until it is mounted. `origin`: properties that name its
        source, {} for an empty one. Raises Blocked if Azure refuses or the volume is not mounted in time, and
        what `budget` raises."""
        config, name = self._client.config, object_name(volume)
        if self._find(volume) is None:
            rule = {
                "ruleIndex": 1,
                "allowedClients": config.allowed_clients,
                "unixReadWrite": True,
                "hasRootAccess": True,
                "nfsv3": True,
                "nfsv41": False,
                "cifs": False,
            }
            properties = {
                "creationToken": name,
                "usageThreshold": _rounded(self._size_bytes),
                "subnetId": config.subnet,
                "protocolTypes": ["NFSv3"],
                # World-writable, because Azure cannot know the user of a pod.
                "unixPermissions": "0777",
                "snapshotDirectoryVisible": False,
                "exportPolicy": {"rules": [rule]},
                **origin,
            }
            body = {"location": config.location, "tags": {_OURS: volume}, "properties": properties}
            self._client.create(self._pool(self._tier), name, body, budget)
        found = self._source(volume)
        _refuse_unfinished(found)
        targets = [target.get("ipAddress", "") for target in found["properties"].get("mountTargets") or ()]
        what = f"{', '.join(targets) or 'its address'}:/{name}"
        words = f"Azure has the volume, and it is not mounted: mount {what} at {self.path(volume)}."
        wait_until_mounted(self.path(volume), self._root, self._mount_seconds, budget, words)

    def _pool(self, service_tier: str) -> str:
        pool = self._client.config.pools.get(service_tier)
        if pool is None:
            words = f"The storage class has no pool for the service tier {service_tier or 'without a name'}."
            raise Blocked("no_such_tier", words, is_passing=False)
        return pool

    def _all(self) -> Iterator[Row]:
        """Yield our volumes, including retired ones and those in pools that are no longer configured."""
        for pool in self._client.pools():
            for found in self._client.volumes(pool):
                if {_OURS, _RETIRED} & set(found.get("tags") or ()):
                    yield found

    def _named(self, volume: str) -> Row | None:
        found = (self._client.volume(pool, object_name(volume)) for pool in self._pools())
        return next((one for one in found if one is not None), None)

    def _pools(self) -> Iterator[str]:
        """Yield the configured pools, then the account's others. Raises Blocked if the account does not exist, since
        an empty listing would look like an absence of volumes."""
        configured = dict.fromkeys(self._client.config.pools.values())
        yield from configured
        yield from (pool for pool in self._client.pools() if pool not in configured)

    def _find(self, volume: str) -> Row | None:
        """Return Azure's record of a volume (by id); None if there is none. Raises Blocked for a volume with our
        name that is not ours."""
        found = self._named(volume)
        if found is not None and not _is_ours(found, volume):
            words = f"The account has a volume {object_name(volume)} that Trainyard did not make."
            raise Blocked("name_in_use", words, is_passing=False)
        return found

    def _source(self, volume: str) -> Row:
        found = self._find(volume)
        if found is None or _is_retired(found):
            raise ContentMissing("The volume is not in Azure NetApp Files (any more).")
        return found

    def _snapshot(self, name: str, volume: Row, budget: Budget) -> Row:
        """Return a snapshot of a volume; takes it if it does not exist. Raises Blocked if Azure refuses or does
        not show it yet, and what `budget` raises."""
        found = self._snapshot_named(name, volume)
        if found is None:
            self._client.create_snapshot(*_pool_and_name(volume), name, budget)
            found = self._snapshot_named(name, volume)
        if found is None:
            raise Blocked("job_not_done", f"Azure does not list the new snapshot {name} yet.")
        _refuse_unfinished(found)
        return found

    def _snapshot_named(self, name: str, volume: Row) -> Row | None:
        rows = self._client.snapshots(*_pool_and_name(volume))
        return next((row for row in rows if _last(row) == name), None)

    def _with_snapshot(self, snapshot: str) -> tuple[Row, Row] | None:
        """Return (volume, snapshot), Azure's records, for a snapshot's id; None if there is none."""
        for volume in self._all():
            # Snapshots have no tags, so those of every volume are listed.
            if found := self._snapshot_named(object_name(snapshot), volume):
                return volume, found
        return None

    def _delete_unless_kept(self, volume: Row) -> None:
        """Delete a retired volume that has no snapshots of users."""
        names = [_last(row) for row in self._client.snapshots(*_pool_and_name(volume))]
        if any(name.startswith(_PREFIX) and not name.startswith(f"{_PREFIX}base-") for name in names):
            return
        try:
            self._client.delete(*_pool_and_name(volume))
        except AnfRefused as refused:
            # Not found: an earlier try has deleted it.
            if refused.status not in NOT_FOUND:
                raise


def object_name(key: str) -> str:
    """Return the name in Azure of a volume or snapshot, by its id."""
    return _PREFIX + key


def _refuse_running(found: Row) -> None:
    """Raise Blocked while Azure runs an operation on the volume `found` that an earlier try started."""
    state = found["properties"].get("provisioningState")
    if state in ("Accepted", "Creating", "Patching", "Updating", "Moving"):
        raise Blocked("job_not_done", f"Azure has not finished {_last(found)} yet ({state}).")


def _refuse_unfinished(found: Row) -> None:
    """Raise Blocked if the volume `found` is one that Azure still creates, or failed to create, for an earlier
    try."""
    _refuse_running(found)
    state = found["properties"].get("provisioningState")
    if state == "Failed":
        words = (
            f"Azure could not make {_last(found)} (provisioning state {state}); delete it and make another."
        )
        raise Blocked("storage_refused", words, is_passing=False)


def _made_of(snapshot: Row) -> dict[str, Any]:
    return {"snapshotId": snapshot["id"]}


def _is_ours(found: Row, volume: str) -> bool:
    tags = found.get("tags") or {}
    return volume in (tags.get(_OURS), tags.get(_RETIRED))


def _is_retired(found: Row) -> bool:
    return _RETIRED in (found.get("tags") or {})


def _pool_and_name(volume: Row) -> tuple[str, str]:
    """Return (pool, name) from an id .../capacityPools/POOL/volumes/NAME."""
    parts = volume["id"].split("/")
    return parts[-3], parts[-1]


def _last(row: Row) -> str:
    return str(row["id"].rpartition("/")[2])


def _size(volume: Row) -> int:
    return int(volume["properties"]["usageThreshold"])


def _rounded(size_bytes: int) -> int:
    """Return the size in bytes rounded up to a multiple of a GiB, which Azure requires."""
    return -(-size_bytes // GIB) * GIB
