"""Names of the objects that volumes and snapshots are in a Kubernetes cluster. Pure."""


def claim_name(volume: str) -> str:
    """Return the PersistentVolumeClaim of a volume, in its project's namespace."""
    return f"volume-{volume}"


def snapshot_name(snapshot: str) -> str:
    """Return the VolumeSnapshot of a snapshot, in its project's namespace."""
    return f"snapshot-{snapshot}"
