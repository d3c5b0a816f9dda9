"""Names of the Kubernetes objects for volumes, snapshots and caches, and tasks of pods that work on them.
Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Name of the claim for a project's caches at the default location, in its namespace.
CACHE_CLAIM = "trainyard-caches"

# What is wrong with a claim that was made: reasons of its volume, with what to do.
CLAIM_DELETED, CLAIM_BEING_DELETED, CLAIM_LOST = "claim_deleted", "claim_being_deleted", "claim_lost"
NAMESPACE_DELETED = "namespace_deleted"
# Reasons of a deleted snapshot that the driver still has, and of a volume that it has not made.
NOT_DELETED, NOT_PROVISIONED = "not_deleted", "not_provisioned"
CLAIM_TROUBLES: Mapping[str, str] = {
    CLAIM_DELETED: "Its PersistentVolumeClaim was deleted in the cluster. Restore a snapshot of it, or delete it here.",
    CLAIM_BEING_DELETED: "Its PersistentVolumeClaim was deleted in the cluster, and goes with the last pod that mounts"
    " it. Copy what you need while that pod runs.",
    NAMESPACE_DELETED: "The namespace of its project was deleted in the cluster, with all PersistentVolumeClaims in it."
    " Bring the claim back from a backup of the cluster, or delete it here.",
    CLAIM_LOST: "The cluster lost the PersistentVolume of its claim. Restore a snapshot of it, or delete it here.",
}


def trouble_of(claim: Mapping[str, Any]) -> str:
    """Return the problem of a PersistentVolumeClaim, CLAIM_BEING_DELETED or CLAIM_LOST; "" for none."""
    if claim["metadata"].get("deletionTimestamp"):
        return CLAIM_BEING_DELETED
    return CLAIM_LOST if (claim.get("status") or {}).get("phase") == "Lost" else ""


def claim_name(volume: str) -> str:
    """Return the name of a volume's PersistentVolumeClaim, in its project's namespace."""
    return f"volume-{volume}"


def snapshot_name(snapshot: str) -> str:
    """Return the name of a snapshot's VolumeSnapshot, in its project's namespace."""
    return f"snapshot-{snapshot}"


def cache_claim_name(location: int | None) -> str:
    """Return the name of the claim for a project's caches at a location; None: the default one."""
    return CACHE_CLAIM if location is None else f"{CACHE_CLAIM}-{location}"


@dataclass(frozen=True, slots=True)
class CacheClaim:
    """The claim for a project's caches at one location. `storage_class`, `size_bytes`: "" and 0 for those of the
    cluster's settings. `access_mode`: Kubernetes' name of it. `nodes`: the nodes that mount it; () for all."""

    name: str = CACHE_CLAIM
    storage_class: str = ""
    size_bytes: int = 0
    access_mode: str = "ReadWriteMany"
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheTask:
    """One run of the pod that works on a project's caches. `name`: a repeat with the same name uses the existing
    pod. `key`: the tree to fill, "" for none. `keep`: the trees not to remove. `url`, `token`: address and
    credential of the content's download. `digest`: the digest of the tree's manifest."""

    name: str
    keep: Sequence[str]
    key: str = ""
    url: str = ""
    token: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A reading of a volume by a pod: at most `limit` entries of a directory after a name, or at most `limit`
    bytes of a file. `name`: a repeat with the same name uses the existing pod."""

    name: str
    volume: str
    path: bytes
    after: bytes
    limit: int
    is_file: bool


@dataclass(frozen=True, slots=True)
class OutputTask:
    """A copy of a directory of a job's output by a pod. `name`: a repeat with the same name uses the existing
    pod. `path`: relative to the working directory of rank 0, or to its checkpoint directory."""

    name: str
    job_id: str
    path: str
    is_of_checkpoints: bool = False
