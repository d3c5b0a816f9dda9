"""The registry of drivers: for each storage system the fields of its storage classes and their checks, what it
enforces, and the function that opens it.

Settings, checks, REST and queries read it here and branch on no driver's name. A driver is a module of this package
that holds `DRIVER`, named in MODULES. Neither Django nor the package of a storage system is imported.
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

# The first is the driver of classes that name none.
MODULES = (
    "datasets.storage.folder_driver",
    "datasets.storage.ontap_driver",
    "datasets.storage.anf_driver",
)

SERVICE_TIERS: Mapping[str, int] = {"standard": 16, "premium": 64, "ultra": 128}
"""MiB/s per TiB of a volume's size, by service tier, where a class names no others."""

OBJECT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,202}")


@dataclass(frozen=True, slots=True)
class Stated:
    """What a driver read of a storage class. `place`: what `opens` needs to reach the system, None for none."""

    directory: Path
    service_tiers: Mapping[str, int] = field(default_factory=dict)
    place: object = None


@dataclass(frozen=True, slots=True)
class Driver:
    """Everything that the rest of the product asks of a driver.

    `fields`: of its storage classes, besides `driver` and `description`. `read(name, stated, state_dir)` reads and
    checks them; it raises ValueError with the reason. `opens` is the "module:function" that is called with the
    StorageClass, the project's id, and size and service tier of volumes to create; it returns MountedVolumes.

    `is_size_enforced`: a write beyond the size of a volume fails. `is_tier_enforced`: a volume gets the throughput of
    its tier and no more. Both are changed where the volume is. `package`: what it imports, of requirements-netapp.txt.
    """

    name: str
    fields: frozenset[str]
    read: Callable[[str, Mapping[str, Any], Path], Stated]
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
    """Return the directory at which machines mount the exports of a storage class. Raise ValueError."""
    root = stated.get("mount_root", "")
    if not isinstance(root, str) or not root.startswith("/"):
        words = "the absolute path at which each machine mounts its exports"
        raise ValueError(f"The storage class {name} needs `mount_root`: {words}.")
    return Path(root)


def texts(name: str, stated: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields, all of which must be strings. Raise ValueError."""
    if not all(isinstance(value, str) for value in stated.values()):
        raise ValueError(f"The fields of the storage class {name} are strings.")
    return dict(stated)


def https(name: str, endpoint: str) -> tuple[str, int]:
    """Return host and port. Raise ValueError unless the scheme is https: a password is never sent without TLS."""
    parts = urlsplit(endpoint)
    try:
        port = parts.port or 443
    except ValueError:
        port = 0
    is_bare = not (parts.username or parts.query or parts.fragment or parts.path.strip("/"))
    if parts.scheme != "https" or not parts.hostname or not is_bare or not port:
        raise ValueError(f"The endpoint of the storage class {name} is like https://cluster.example.org.")
    return parts.hostname, port
