"""Names of the objects that volumes, snapshots and caches are in a Kubernetes cluster. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

# The caches of a project, in its namespace.
CACHE_CLAIM = "trainyard-caches"


def claim_name(volume: str) -> str:
    """Return the PersistentVolumeClaim of a volume, in its project's namespace."""
    return f"volume-{volume}"


def snapshot_name(snapshot: str) -> str:
    """Return the VolumeSnapshot of a snapshot, in its project's namespace."""
    return f"snapshot-{snapshot}"


@dataclass(frozen=True, slots=True)
class CacheTask:
    """One run of the pod that works on the caches of a project. `name`: a repeat with the same one goes on with the
    pod that is there. `key` "": fill nothing. `keep`: the trees that stay. `url`, `token`: where the content of `key`
    is. `digest`: of its manifest."""

    name: str
    keep: Sequence[str]
    key: str = ""
    url: str = ""
    token: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """One look into a volume: entries of a directory after a name, at most `limit`, or a file of at most `limit` bytes.
    `name`: a repeat with the same one uses the pod that is there."""

    name: str
    volume: str
    path: bytes
    after: bytes
    limit: int
    is_file: bool


@dataclass(frozen=True, slots=True)
class OutputTask:
    """One copy of a directory of a job's output. `name`: a repeat with the same one uses the pod that is there. `path`:
    below the working directory of rank 0, or below that of the checkpoints."""

    name: str
    job_id: str
    path: str
    is_of_checkpoints: bool = False
