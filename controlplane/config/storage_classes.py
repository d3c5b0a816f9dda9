"""The storage classes of volumes in this installation's configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.config.netapp_places import (
    ANF_KEYS,
    ONTAP_KEYS,
    AnfPlace,
    OntapPlace,
    anf_place,
    ontap_place,
)

DEFAULT_CLASS = "standard"
SERVICE_TIERS: Mapping[str, int] = {"standard": 16, "premium": 64, "ultra": 128}
"""MiB/s per TiB of a volume's size, by service tier, where a class names no others."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEYS = {"directory", "service_tiers", "description"}
_DRIVER_KEYS = {"driver", "mount_root", "description"}

FOLDER, ONTAP, ANF = "folder", "ontap", "anf"
DRIVERS = (ONTAP, ANF)
PACKAGES: Mapping[str, str] = {ONTAP: "netapp-ontap", ANF: "azure-mgmt-netapp"}
"""What drivers import, of requirements-netapp.txt."""
Place = OntapPlace | AnfPlace
_DRIVERS: Mapping[str, tuple[set[str], Callable[[str, Mapping[str, Any]], Place]]] = {
    ONTAP: (ONTAP_KEYS, ontap_place),
    ANF: (ANF_KEYS, anf_place),
}


@dataclass(frozen=True, slots=True)
class StorageClass:
    """How volumes of one class are stored. `directory`: for a driver, the mount point of its exports, which admins
    mount. `service_tiers`: MiB/s per TiB by tier, the default tier first; empty if the class has none. `place`: the
    driver's system; None for folders, and for a driver's class that is no longer configured."""

    name: str
    directory: Path
    service_tiers: Mapping[str, int]
    description: str = ""
    driver: str = FOLDER
    place: Place | None = None

    @property
    def default_tier(self) -> str:
        return next(iter(self.service_tiers), "")

    @property
    def is_size_enforced(self) -> bool:
        """Return whether writes beyond a volume's size fail. Then a new size must be applied to the storage system
        too."""
        return self.driver != FOLDER

    @property
    def is_tier_enforced(self) -> bool:
        """Return whether the storage system enforces a tier's throughput. Then a new tier must be applied to it
        too."""
        return self.driver == ANF


def storage_classes(stated: Mapping[str, Any], state_dir: Path) -> dict[str, StorageClass]:
    """Return the classes by name, the default first; without a configuration, `standard` in the state directory.
    Raise ValueError with the reason."""
    return {name: _class(name, about, state_dir) for name, about in (stated or {DEFAULT_CLASS: {}}).items()}


def _class(name: str, about: Any, state_dir: Path) -> StorageClass:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a storage class; use small letters, digits and hyphens.")
    if not isinstance(about, dict):
        raise ValueError(f"The storage class {name} is an object.")
    driver = about.get("driver", FOLDER)
    if driver in _DRIVERS:
        return _class_of_driver(name, about, driver)
    if driver != FOLDER:
        raise ValueError(f"The driver of the storage class {name} is one of folder, {', '.join(_DRIVERS)}.")
    _refuse_others(name, about, _KEYS | {"driver"})
    directory, description = about.get("directory", f"volumes/{name}"), about.get("description", "")
    if not isinstance(directory, str) or not isinstance(description, str):
        raise ValueError(f"The directory and the description of the storage class {name} are strings.")
    tiers = about.get("service_tiers", SERVICE_TIERS)
    is_usable = (
        isinstance(tiers, Mapping)
        and tiers
        and all(type(rate) is int and rate > 0 for rate in tiers.values())
    )
    if not is_usable:
        raise ValueError(f"The service_tiers of the storage class {name} are MiB/s per TiB by name, above 0.")
    return StorageClass(name, (state_dir / directory).resolve(), dict(tiers), description)


def _class_of_driver(name: str, about: Mapping[str, Any], driver: str) -> StorageClass:
    keys, read_place = _DRIVERS[driver]
    _refuse_others(name, about, _DRIVER_KEYS | keys)
    root, description = about.get("mount_root", ""), about.get("description", "")
    if not isinstance(root, str) or not root.startswith("/") or not isinstance(description, str):
        raise ValueError(
            f"The storage class {name} needs `mount_root`: the absolute path at which each machine mounts its exports."
        )
    place = read_place(name, about)
    tiers = {tier: SERVICE_TIERS[tier] for tier in place.pools} if isinstance(place, AnfPlace) else {}
    return StorageClass(name, Path(root), tiers, description, driver, place)


def _refuse_others(name: str, about: Mapping[str, Any], keys: set[str]) -> None:
    others = sorted(set(about) - keys)
    if others:
        raise ValueError(
            f"The storage class {name} has the unknown fields {', '.join(others)}; there are {', '.join(sorted(keys))}."
        )
