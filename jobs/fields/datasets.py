"""Field `datasets`: the datasets that a job mounts. Pure."""

from collections.abc import Mapping
from typing import Any

from controlplane import fields
from controlplane.api import json_schema as schemas
from controlplane.fields import Refused
from jobs.fields import values
from jobs.fields.mounts import mount_path

LATEST = "latest"
# Keys that only answers have; accepted so that a job can be sent back, but ignored.
_SHOWN = frozenset({"asked", "version_id"})
_name = fields.dns_label(63)
_number = fields.whole(1, 1 << 31)


def wanted(value: Any) -> dict[str, Any]:
    """Read {"dataset": "chest-xray", "version": "latest", "cached": true, "mount_path": "/data"}. `version`: a
    number, a tag or `latest`; `subset`: optional, a saved subset; a dataset PROJECT/NAME is one that another project
    shares. Raises Refused if the value is malformed."""
    if not isinstance(value, dict):
        raise Refused(
            "not_an_object",
            'A dataset is {"dataset": "chest-xray", "version": "latest", "mount_path": "/data"}.',
        )
    for name in value:
        if name not in {"dataset", "version", "subset", "cached", "mount_path"} | _SHOWN:
            words = "A dataset has dataset, version, subset, cached and mount_path."
            raise Refused("unknown_field", words, f"/{fields.pointer_part(name)}")
    for name in ("dataset", "mount_path"):
        if name not in value:
            raise Refused("required", f"Give the {name} of the dataset.", f"/{name}")
    path = mount_path(value["mount_path"])
    # Omitted when not given, so that stored specs of older versions compare equal.
    subset = {"subset": fields.inside(_name, value["subset"], "/subset")} if value.get("subset") else {}
    return {
        "dataset": fields.inside(_dataset, value["dataset"], "/dataset"),
        "version": fields.inside(_version, value.get("version", LATEST), "/version"),
        **subset,
        "cached": fields.inside(fields.switch, value.get("cached", False), "/cached"),
        "mount_path": path,
    }


def _dataset(value: Any) -> str:
    if not isinstance(value, str) or value.count("/") > 1:
        raise Refused("not_a_dataset", "Name a dataset, or PROJECT/NAME for one that another project shares.")
    for part in value.split("/"):
        _name(part)
    return value


def _version(value: Any) -> str:
    return str(_number(value)) if isinstance(value, int) else str(fields.text(63)(value))


def _parse_dataset(line: str) -> dict[str, Any]:
    source, colon, at = line.rpartition(":")
    name, _, version = source.partition("@")
    version, slash, subset = version.partition("/")
    if not (colon and name and at) or (slash and not (version and subset)):
        raise ValueError(line)
    chosen = {"subset": subset} if subset else {}
    return {"dataset": name, "version": version or LATEST, **chosen, "cached": False, "mount_path": at}


def _write_dataset(mount: Mapping[str, Any]) -> str:
    subset = f"/{mount['subset']}" if mount.get("subset") else ""
    return f"{mount['dataset']}@{mount['version']}{subset}:{mount['mount_path']}"


VALUE = values.listed(
    wanted,
    20,
    schemas.OBJECT,
    parse=_parse_dataset,
    write=_write_dataset,
    text="NAME@VERSION:PATH or NAME@VERSION/SUBSET:PATH",
    separator=values.LINES,
)
