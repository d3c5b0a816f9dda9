"""The volumes of a pod for what its job mounts: claims, and directories of the node. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from controlplane.engines.base import Mount

# Volumes by name: the fields of a container's volumeMount besides the name, and the volume's source.
Volumes: TypeAlias = dict[str, tuple[dict[str, Any], dict[str, Any]]]


def volumes_of(host_paths: Mapping[str, str], mounts: Sequence[Mount]) -> Volumes:
    """Return the volumes for a job's mounts and, read-only, for the cluster's host paths (`host_paths`: path in the
    pod -> path on the node)."""
    found: Volumes = {
        f"host-{number}": ({"mountPath": path, "readOnly": True}, _directory(source))
        for number, (path, source) in enumerate(sorted(host_paths.items()))
    }
    for number, mount in enumerate(mounts):
        place: dict[str, Any] = {"mountPath": mount.path}
        place |= {"readOnly": True} if mount.is_read_only else {}
        place |= {"subPath": mount.sub_path} if mount.sub_path else {}
        claim = {"persistentVolumeClaim": {"claimName": mount.claim}}
        name = f"{'host-' * mount.is_read_only}mount-{number}"
        found[name] = place, claim if mount.claim else _directory(mount.source)
    return found


def _directory(path: str) -> dict[str, Any]:
    return {"hostPath": {"path": path, "type": "Directory"}}
