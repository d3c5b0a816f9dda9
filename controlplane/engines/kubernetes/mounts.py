"""The volumes of a pod for what its job mounts: claims, and directories of the node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.engines.base import Mount

# Volumes with this prefix are mounted read-only.
READ_ONLY = "host-"
_MOUNT = "mount-"


def volumes_of(
    host_paths: Mapping[str, str], mounts: Sequence[Mount]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return volumes by name, each with its mount path and source."""
    found = {
        f"{READ_ONLY}{number}": (path, _directory(source))
        for number, (path, source) in enumerate(sorted(host_paths.items()))
    }
    for number, mount in enumerate(mounts):
        claim = {"persistentVolumeClaim": {"claimName": mount.claim}}
        name = f"{READ_ONLY * mount.is_read_only}{_MOUNT}{number}"
        found[name] = mount.path, claim if mount.claim else _directory(mount.source)
    return found


def volume_mounts(
    volumes: Mapping[str, tuple[str, Mapping[str, Any]]], mounts: Sequence[Mount]
) -> list[dict[str, Any]]:
    """Return a container's volumeMounts for these volumes, given by name with their mount path."""
    return [
        {
            "name": name,
            "mountPath": path,
            **({"readOnly": True} if name.startswith(READ_ONLY) else {}),
            **_sub_path(name, mounts),
        }
        for name, (path, _) in volumes.items()
    ]


def _sub_path(volume: str, mounts: Sequence[Mount]) -> dict[str, str]:
    name = volume.removeprefix(READ_ONLY)
    found = mounts[int(name.removeprefix(_MOUNT))].sub_path if name.startswith(_MOUNT) else ""
    return {"subPath": found} if found else {}


def _directory(path: str) -> dict[str, Any]:
    return {"hostPath": {"path": path, "type": "Directory"}}
