"""The registry of drivers: for each storage system the fields of its storage classes and their checks, what it
enforces, and the function that opens it.

Settings, checks, REST and queries read the registry and never branch on a driver's name. A driver is a module of this
package that is named in MODULES and defines `DRIVER`; it imports neither Django nor a storage system's package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# The first is the default driver.
MODULES = (
    "datasets.storage.folder_driver",
    "datasets.storage.ontap_driver",
    "datasets.storage.anf_driver",
)

SERVICE_TIERS: Mapping[str, int] = {"standard": 16, "premium": 64, "ultra": 128}
"""Default service tiers: MiB/s per TiB of a volume's size, by name."""

OBJECT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,202}")


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """What a driver read from the settings of a storage class. `directory`: the directory of its volumes, or of their
    mounts. `service_tiers`: MiB/s per TiB by tier. `config`: the storage system's address and credentials for
    `opens`; None for a driver without a storage system."""

    directory: Path
    service_tiers: Mapping[str, int] = field(default_factory=dict)
    config: object = None


@dataclass(frozen=True, slots=True)
class Driver:
    """The description of a storage driver that the rest of the product uses.

    `fields`: the settings of its storage classes, besides `driver` and `description`. `read(name, stated, state_dir)`
    reads and checks them; it raises ValueError with the reason. `opens`: the "module:function" that is called with the
    StorageClass, the project's id, and the size and service tier of new volumes; it returns MountedVolumes.

    `is_size_enforced`: a write beyond the size of a volume fails. `is_tier_enforced`: a volume gets the throughput of
    its tier and no more. `package`: the package that the driver imports (requirements-netapp.txt), "" for none.
    """

    name: str
    fields: frozenset[str]
    read: Callable[[str, Mapping[str, Any], Path], DriverSettings]
    opens: str
    is_size_enforced: bool = False
    is_tier_enforced: bool = False
    package: str = ""


@cache
def drivers() -> Mapping[str, Driver]:
    """Return all drivers by name, the default first."""
    found: list[Driver] = [import_module(module).DRIVER for module in MODULES]
    return {driver.name: driver for driver in found}


def mount_root(name: str, stated: Mapping[str, Any]) -> Path:
    """Return the directory below which machines mount the exports of the storage class `name`, from its parsed
    configuration `stated`. Raise ValueError if it is missing or not an absolute path."""
    root = stated.get("mount_root", "")
    if not isinstance(root, str) or not root.startswith("/"):
        words = "the absolute path at which each machine mounts its exports"
        raise ValueError(f"The storage class {name} needs `mount_root`: {words}.")
    return Path(root)


def texts(name: str, stated: Mapping[str, Any]) -> dict[str, str]:
    """Return the configuration `stated` of the storage class `name` as a dict. Raise ValueError unless all values
    are strings."""
    if not all(isinstance(value, str) for value in stated.values()):
        raise ValueError(f"The fields of the storage class {name} are strings.")
    return dict(stated)


def https(name: str, endpoint: str) -> tuple[str, int]:
    """Return host and port of an endpoint of the storage class `name`. Raise ValueError unless it is an https
    address without user, path and query: a password is never sent without TLS."""
    parts = urlsplit(endpoint)
    try:
        port = parts.port or 443
    except ValueError:
        # A number beyond 65535; 0 is refused below.
        port = 0
    is_bare = not (parts.username or parts.query or parts.fragment or parts.path.strip("/"))
    if parts.scheme != "https" or not parts.hostname or not is_bare or not port:
        raise ValueError(f"The endpoint of the storage class {name} is like https://cluster.example.org.")
    return parts.hostname, port
