"""Readers of a job's mounts. Pure."""

import posixpath
from typing import Any

from controlplane import fields
from controlplane.fields import Refused

_KEYS = {"host_path", "mount_path"}


def host_mount(value: Any) -> dict[str, str]:
    """Read {"host_path": "/data", "mount_path": "/mnt"}: a directory of the node. Raises Refused for volumes, which
    are not supported yet.
    """
    if not isinstance(value, dict):
        raise Refused("not_an_object", 'A mount is {"host_path": "/data", "mount_path": "/mnt"}.')
    if "volume" in value or "new" in value:
        raise Refused(
            "not_available", "This installation has no volumes; mount a host path, or leave it out."
        )
    if set(value) != _KEYS:
        raise Refused("not_a_mount", "A mount has host_path and mount_path, and nothing else.")
    paths = {key: fields.inside(fields.absolute_path, value[key], f"/{key}") for key in sorted(_KEYS)}
    plain = {key: normal_path(path) for key, path in paths.items()}
    if plain["mount_path"] == "/":
        raise Refused("mounts_over_root", "Mount below the root directory.", "/mount_path")
    return plain


def normal_path(path: str) -> str:
    """Return an absolute path without doubled slashes, `.` and trailing slash."""
    return "/" + posixpath.normpath(path).lstrip("/")
