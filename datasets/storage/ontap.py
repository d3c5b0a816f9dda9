"""FlexVol volumes of an ONTAP SVM, with ONTAP's own snapshots; a restored volume is a FlexClone.

Name and comment of every object contain our id; one with our name but another comment is not ours, and is
neither used nor deleted. Volumes are mounted in the SVM's namespace by their name; the admin has mounted that
namespace on each machine.

ONTAP deletes a volume together with its snapshots, but our snapshots outlive their volume. A removed volume
is therefore `retired`: unmounted from the namespace, and deleted with its last snapshot.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets.storage.base import UNLIMITED, Blocked, Budget, ContentMissing
from datasets.storage.classes import StorageClass
from datasets.storage.ontap_client import NOT_FOUND, OntapClient, OntapRefused, Row, names
from datasets.storage.ontap_driver import OntapConfig
from datasets.storage.volume_files import VolumeFiles, remove_own, wait_until_mounted
from datasets.storage.volumes import BlockSnapshots, Cut, Report, silent

# How long a new junction may take to appear in this machine's mount.
MOUNT_SECONDS = 15.0
_FIELDS = "name,uuid,comment,size,state,nas.path"
_SNAPSHOT_FIELDS = "name,uuid,comment,size,volume"
_PREFIX = "trainyard_"
_BASE = f"{_PREFIX}base_"
_RETIRED = "trainyard retired "


def open_class(found: StorageClass, project_id: int, size_bytes: int, service_tier: str) -> OntapVolumes:
    """Return the volumes of the storage class `found`, which all projects share: `project_id` is not used, nor
    `service_tier`. `size_bytes`: that of volumes that it creates."""
    config = found.config if isinstance(found.config, OntapConfig) else None
    return OntapVolumes(OntapClient(config, found.name), found.directory, size_bytes)


class OntapVolumes(BlockSnapshots, VolumeFiles):
    """The volumes and snapshots of one storage class. `size_bytes`: the size of volumes that it creates."""

    def __init__(
        self, client: OntapClient, root: Path, size_bytes: int = 0, mount_seconds: float = MOUNT_SECONDS
    ) -> None:
        self._client, self._root = client, root
        self._size_bytes, self._mount_seconds = size_bytes, mount_seconds

    def path(self, volume: str) -> Path:
        """Return the directory of a volume, which jobs mount."""
        return self._root / volume_name(volume)

    def provision(self, volume: str, budget: Budget = UNLIMITED) -> None:
        """Create an empty volume, unless it exists, and wait until it is mounted. Raises Blocked with ONTAP's
        message or if it is not mounted in time, and what `budget` raises."""
        config = self._client.config
        body = {
            "aggregates": [{"name": config.aggregate}],
            "size": self._size_bytes,
            "guarantee": {"type": "none"},
            "snapshot_policy": {"name": "none"},
            "snapshot_directory_access_enabled": False,
            "space": {"snapshot": {"reserve_percent": 0}},
        }
        # World-writable: ONTAP cannot know a pod's user; the parent directories exclude other users.
        access = {"security_style": "unix", "unix_permissions": 777}
        self._make(volume, body, access, budget)

    def clone(self, volume: str, source: str, budget: Budget = UNLIMITED, report: Report = silent) -> None:
        """Create a FlexClone of another volume's current content. Raises ContentMissing if there is no `source`,
        Blocked if the storage system refuses, and what `budget` raises."""
        if self._find(volume) is None:
            self._snapshot(base_name(volume), self._source(source), budget)
        self._make_clone(volume, volume_name(source), base_name(volume), budget)

    def restore(
        self, volume: str, snapshot: str, budget: Budget = UNLIMITED, report: Report = silent
    ) -> None:
        """Create a FlexClone of a snapshot, which stays. Raises ContentMissing if there is no such snapshot,
        Blocked if the storage system refuses, and what `budget` raises."""
        found = self._snapshots(snapshot_name(snapshot))
        if not found:
            self._require_svm()
            raise ContentMissing("The snapshot is not in ONTAP (any more).")
        self._make_clone(volume, found[0]["volume"]["name"], found[0]["name"], budget)

    def remove(self, volume: str) -> None:
        """Unmount a volume, and delete it unless it has snapshots. Does nothing for a missing one. Raises Blocked
        if ONTAP refuses, also while a clone depends on it."""
        found = self._named(volume)
        if found is not None and found.get("comment") in (_comment(volume), _RETIRED + volume):
            changes = {"nas": {"path": ""}} if _junction(found) else {}
            if changes or not _is_retired(found):
                self._client.change(found["uuid"], {"comment": _RETIRED + volume, **changes})
        self._delete_retired(volume_name(volume))
        if self._named(volume) is None:
            self._delete_base(volume)

    def resize(self, volume: str, size_bytes: int, budget: Budget = UNLIMITED) -> None:
        """Change the size of a volume to `size_bytes`. Raises ContentMissing if there is no such volume, Blocked
        if ONTAP refuses, also because the volume holds more than the new size, and what `budget` raises."""
        found = self._source(volume)
        if found["size"] != size_bytes:
            self._client.change(found["uuid"], {"size": size_bytes}, budget)

    def retier(self, volume: str, service_tier: str, budget: Budget = UNLIMITED) -> None:
        """Do nothing: storage classes of ONTAP have no tiers."""

    def _take(self, snapshot: str, volume: str, budget: Budget, cut: Cut) -> int:
        made = self._snapshot(snapshot_name(snapshot), self._source(volume), budget)
        return int(made.get("size") or 0)

    def has_snapshot(self, snapshot: str) -> bool:
        """Return whether ONTAP has a snapshot. Raises Blocked if it refuses."""
        return bool(self._snapshots(snapshot_name(snapshot)))

    def remove_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot, and its retired volume if it was the last one. Raises Blocked if ONTAP refuses, also
        while a clone depends on it."""
        self._require_svm()
        for found in self._snapshots(snapshot_name(snapshot)):
            self._delete_snapshot(found)
            self._delete_retired(found["volume"]["name"])
        # A killed process had deleted the last snapshot of a retired volume.
        for left in self._client.rows("volume", _FIELDS, comment=f"{_RETIRED}*"):
            with suppress(Blocked):
                self._delete_retired(left["name"])

    def _make(self, volume: str, body: Row, access: Row, budget: Budget) -> None:
        """Create a volume, or finish the one that an earlier try began, and wait until it is mounted. `body`,
        `access`: its properties, and those of its access over NFS. Raises Blocked if ONTAP refuses or the volume
        is not mounted in time, and what `budget` raises."""
        config, name = self._client.config, volume_name(volume)
        nas = {"path": f"{config.junction}/{name}", "export_policy": {"name": config.export_policy}, **access}
        found = self._find(volume)
        if found is None:
            about = {"name": name, "svm": {"name": config.svm}, "comment": _comment(volume), "nas": nas}
            self._client.create("volume", {**about, **body}, budget=budget)
        elif not _junction(found):
            self._client.change(found["uuid"], {"nas": {"path": nas["path"]}}, budget)
        where = f"mount {config.junction or '/'} of the SVM {config.svm} at {self._root}."
        words = f"ONTAP has the volume, and {self.path(volume)} is not mounted: {where}"
        wait_until_mounted(self.path(volume), self._root, self._mount_seconds, budget, words)

    def _make_clone(self, volume: str, source: str, snapshot: str, budget: Budget) -> None:
        parent = {"parent_volume": {"name": source}, "parent_snapshot": {"name": snapshot}}
        self._make(volume, {"clone": {"is_flexclone": True, **parent}}, {}, budget)
        remove_own(self.path(volume))
        found = self._source(volume)
        if found["size"] < self._size_bytes:
            self._client.change(found["uuid"], {"size": self._size_bytes}, budget)

    def _find(self, volume: str) -> Row | None:
        """Return ONTAP's record of a volume (by id); None if there is none. Raises Blocked for a volume with our
        name that is not ours."""
        found = self._named(volume)
        if found is not None and found.get("comment") not in (_comment(volume), _RETIRED + volume):
            words = f"The SVM has a volume {volume_name(volume)} that Trainyard did not make."
            raise Blocked("name_in_use", words, is_passing=False)
        return found

    def _named(self, volume: str) -> Row | None:
        found = self._client.rows("volume", _FIELDS, name=volume_name(volume))
        if not found:
            self._require_svm()
        return next(iter(found), None)

    def _require_svm(self) -> None:
        """Raise Blocked if the SVM does not exist."""
        # The empty listing of a missing SVM would look like an absence of volumes.
        if not self._client.rows("volume", "name", is_svm_root="true"):
            words = f"No root volume of the SVM {self._client.config.svm} is listed: check `svm` of the storage class."
            raise Blocked("no_such_svm", words, is_passing=False)

    def _source(self, volume: str) -> Row:
        found = self._find(volume)
        if found is None or _is_retired(found):
            raise ContentMissing("The volume is not in ONTAP (any more).")
        return found

    def _snapshot(self, name: str, volume: Row, budget: Budget) -> Row:
        """Return a snapshot of a volume; takes it if it does not exist. Raises Blocked if ONTAP refuses or does
        not list it yet, and what `budget` raises."""
        if found := self._snapshots(name):
            return found[0]
        body = {"name": name, "comment": _of(volume["name"])}
        self._client.create("snapshot", body, volume["uuid"], budget=budget)
        if found := self._snapshots(name):
            return found[0]
        raise Blocked("job_not_done", f"ONTAP does not list the new snapshot {name} yet.")

    def _snapshots(self, name: str, volume: str = "*") -> list[dict[str, Any]]:
        """Return our snapshots whose name matches `name`, and whose volume has this UUID; * stands for any text.
        Excludes snapshots that a clone inherits from its parent."""
        rows = self._client.rows("snapshot", _SNAPSHOT_FIELDS, volume, name=name)
        return [row for row in rows if row.get("comment") == _of(row["volume"]["name"])]

    def _delete_snapshot(self, snapshot: Row) -> None:
        volume = snapshot["volume"]
        try:
            self._client.delete("snapshot", volume["uuid"], snapshot["uuid"])
        except OntapRefused as refused:
            if refused.ontap_code == NOT_FOUND:
                return
            raise self._blocked_by_clones(refused, volume["name"], snapshot["name"]) from refused

    def _delete_retired(self, name: str) -> None:
        """Delete the retired volume with this name unless it has snapshots of ours, then the snapshot that its parent
        keeps for it. Raises Blocked if it cannot be deleted, for example while volumes made from it exist."""
        for found in self._client.rows("volume", _FIELDS, name=name, comment=f"{_RETIRED}*"):
            # Left by a process that was killed after it had deleted the clone.
            for base in self._snapshots(f"{_BASE}*", found["uuid"]):
                if self._named(base["name"].removeprefix(_BASE)) is None:
                    self._delete_snapshot(base)
            if self._snapshots(f"{_PREFIX}*", found["uuid"]):
                return
            try:
                self._client.delete("volume", found["uuid"])
            except OntapRefused as refused:
                if refused.ontap_code != NOT_FOUND:
                    raise self._blocked_by_clones(refused, name, "*") from refused
            self._delete_base(found["comment"].removeprefix(_RETIRED))

    def _delete_base(self, volume: str) -> None:
        """Delete the snapshot on which a deleted clone was based, and its retired volume if that was the
        last."""
        for base in self._snapshots(base_name(volume)):
            self._delete_snapshot(base)
            self._delete_retired(base["volume"]["name"])

    def _blocked_by_clones(self, refused: OntapRefused, volume: str, snapshot: str) -> Blocked:
        """Return the Blocked error for a deletion that ONTAP refused because of clones; it names them. It is
        always retried."""
        query = {"clone.parent_volume.name": volume, "clone.parent_snapshot.name": snapshot}
        clones = self._client.rows("volume", "name", **query)
        if not clones:
            return Blocked("not_deleted", refused.detail)
        return Blocked("in_use", f"Clones depend on it: {names(clones)}. {refused.detail}")


def volume_name(volume: str) -> str:
    """Return the name in ONTAP of a volume, by its id."""
    return _PREFIX + volume.replace("-", "_")


def snapshot_name(snapshot: str) -> str:
    """Return the name in ONTAP of a snapshot, by its id."""
    return _PREFIX + snapshot


def base_name(volume: str) -> str:
    """Return the name of the snapshot on which the clone `volume` is based."""
    return f"{_BASE}{volume}"


def _comment(volume: str) -> str:
    return f"trainyard volume {volume}"


def _of(volume: str) -> str:
    return f"trainyard snapshot of {volume}"


def _is_retired(found: Row) -> bool:
    return str(found.get("comment")).startswith(_RETIRED)


def _junction(found: Row) -> str:
    return str((found.get("nas") or {}).get("path") or "")
