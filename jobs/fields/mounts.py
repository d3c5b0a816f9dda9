"""Field `mounts`: the volumes and host paths that a job mounts. Pure."""

import posixpath
from collections.abc import Mapping
from typing import Any

from controlplane import fields
from controlplane.api import json_schema as schemas
from controlplane.fields import Refused
from jobs.fields import values

SNAPSHOT_EVENTS = ("success", "preempt", "epoch", "best_metric")
ACCESS_MODES = ("ReadWriteOnce", "ReadWriteMany")
SMALLEST_BYTES, LARGEST_BYTES = 1 << 20, 1 << 60
_SHAPES = (
    {"host_path", "mount_path"},
    {"volume", "mount_path"},
    {"volume", "mount_path", "read_only"},
    {"new", "mount_path"},
)
_NEW = {"storage_class", "size", "name", "access_mode"}
_volume_name = fields.dns_label(63)


def mount(value: Any) -> dict[str, Any]:
    """Read {"host_path": "/data"}, a directory of the node, {"volume": "data"}, an existing volume, or {"new":
    {...}}, a volume to create; each with "mount_path". Raises Refused if the value is malformed."""
    if not isinstance(value, dict):
        raise Refused("not_an_object", 'A mount is {"volume": "data", "mount_path": "/mnt"}.')
    if set(value) not in _SHAPES:
        raise Refused(
            "not_a_mount",
            "A mount has mount_path and one of volume, new and host_path; a volume also read_only.",
        )
    path = mount_path(value["mount_path"])
    if "host_path" in value:
        host = fields.inside(fields.absolute_path, value["host_path"], "/host_path")
        return {"host_path": normal_path(host), "mount_path": path}
    if "new" in value:
        return {"new": fields.inside(new_volume, value["new"], "/new"), "mount_path": path}
    is_read_only = fields.inside(fields.switch, value.get("read_only", False), "/read_only")
    name = fields.inside(_volume_name, value["volume"], "/volume")
    return {"volume": name, "mount_path": path, "read_only": is_read_only}


def new_volume(value: Any) -> dict[str, Any]:
    """Return the volume that {"storage_class": "standard", "size": "10Gi"} declares, optionally with `name` and
    `access_mode`. Raises Refused if the value is malformed."""
    if not isinstance(value, dict) or not {"storage_class", "size"} <= set(value) <= _NEW:
        raise Refused(
            "not_a_new_volume",
            'A new volume is {"storage_class": "standard", "size": "10Gi"}, also with a name.',
        )
    read = {
        "storage_class": _volume_name,
        "size": size_bytes,
        "name": _volume_name,
        "access_mode": access_mode,
    }
    return {key: fields.inside(read[key], value[key], f"/{key}") for key in sorted(value)}


def size_bytes(value: Any) -> int:
    """Read a size, given in bytes or as a quantity such as "10Gi"; return bytes. Raises Refused if it is neither, or
    out of range."""
    # Imported here: `fractions`, which it imports, takes a third of the time that `yard submit` needs to
    # import the fields, and `yard` does not parse sizes.
    from controlplane.clusters import quantities

    try:
        found = quantities.pieces(value) if isinstance(value, str) else value
    except ValueError as error:
        raise Refused("not_a_size", 'A size is a number of bytes, or a text such as "10Gi".') from error
    if isinstance(found, bool) or not isinstance(found, int):
        raise Refused("not_a_size", 'A size is a number of bytes, or a text such as "10Gi".')
    if not SMALLEST_BYTES <= found <= LARGEST_BYTES:
        raise Refused("out_of_range", "A size is from 1Mi to 1Ei.")
    return found


def access_mode(value: Any) -> str:
    """Return the value if it is ReadWriteOnce or ReadWriteMany. Raises Refused for any other."""
    if value not in ACCESS_MODES:
        raise Refused("unknown_access_mode", f"The access mode is one of: {', '.join(ACCESS_MODES)}.")
    return str(value)


def snapshot_event(value: Any) -> str:
    """Return the value if it is a job event on which snapshots of its volumes are taken. Raises Refused for any
    other."""
    if value not in SNAPSHOT_EVENTS:
        raise Refused("unknown_event", f"Snapshots are taken on: {', '.join(SNAPSHOT_EVENTS)}.")
    return str(value)


def is_volume(mount: Mapping[str, Any]) -> bool:
    """Return whether the mount is a volume, existing or to be created, and not a host path."""
    return "host_path" not in mount


def edge(mount: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored mount in REST form: without the keys whose value is false or empty."""
    return {
        key: mount[key] for key in ("host_path", "volume", "new", "mount_path", "read_only") if mount.get(key)
    }


def mount_path(value: Any) -> str:
    """Return an absolute path in normal form (see `normal_path`). Raises Refused for any other value, and for the
    root."""
    path = normal_path(fields.inside(fields.absolute_path, value, "/mount_path"))
    if path == "/":
        raise Refused("mounts_over_root", "Mount below the root directory.", "/mount_path")
    return path


def normal_path(path: str) -> str:
    """Return an absolute path without doubled slashes, `.` and trailing slash."""
    return "/" + posixpath.normpath(path).lstrip("/")


# ":ro" and ":rw", as in other container tools.
_READ_ONLY = "ro"


def _parse_mount(line: str) -> dict[str, Any]:
    parts = line.split(":")
    is_host = line.startswith("/")
    if len(parts) not in (2, 3, 4) or not all(parts) or (is_host and len(parts) > 2):
        raise ValueError(line)
    if len(parts) == 2:
        return {"host_path" if is_host else "volume": parts[0], "mount_path": parts[1]}
    if parts[2:] == [_READ_ONLY]:
        return {"volume": parts[0], "mount_path": parts[1], "read_only": True}
    storage_class, size, at, *name = parts
    # A volume with the name "ro" is never what `:ro` behind a new one means.
    if not at.startswith("/") or name == [_READ_ONLY]:
        raise ValueError(line)
    new = {"storage_class": storage_class, "size": size, **({"name": name[0]} if name else {})}
    return {"new": new, "mount_path": at}


def _write_mount(mount: Mapping[str, Any]) -> str:
    if "new" in mount:
        new = mount["new"]
        words = (new["storage_class"], str(new["size"]), mount["mount_path"], new.get("name", ""))
        return ":".join(word for word in words if word)
    source = mount.get("volume") or mount.get("host_path")
    return f"{source}:{mount['mount_path']}{f':{_READ_ONLY}' if mount.get('read_only') else ''}"


VALUE = values.listed(
    mount,
    50,
    schemas.OBJECT,
    parse=_parse_mount,
    write=_write_mount,
    text="VOLUME:PATH, CLASS:SIZE:PATH or HOST-PATH:PATH",
    separator=values.LINES,
)
