"""The storage classes of volumes in this installation's configuration (TRAINYARD_STORAGE_CLASSES)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from datasets.storage.base import Blocked
from datasets.storage.drivers import Driver, drivers

if TYPE_CHECKING:
    from datasets.storage.volumes import MountedVolumes

DEFAULT_CLASS = "standard"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class StorageClass:
    """How volumes of one class are stored. `directory`: the directory of its volumes; for a storage system, the
    directory where admins mount its exports. `service_tiers`: MiB/s per TiB by tier, the default tier first; empty
    if the class has none. `config`: the driver's system; None for folders, and for a driver's class that is no longer
    configured."""

    name: str
    directory: Path
    service_tiers: Mapping[str, int]
    description: str = ""
    driver: str = "folder"
    config: object = None

    @property
    def default_tier(self) -> str:
        return next(iter(self.service_tiers), "")

    @property
    def about(self) -> Driver | None:
        """Return the description of the class's driver; None if this release has no such driver."""
        return drivers().get(self.driver)

    @property
    def is_size_enforced(self) -> bool:
        """Return whether writes beyond a volume's size fail. Then a new size must be applied to the storage system
        too."""
        return self.about is not None and self.about.is_size_enforced

    @property
    def is_tier_enforced(self) -> bool:
        """Return whether the storage system enforces a tier's throughput. Then a new tier must be applied to it
        too."""
        return self.about is not None and self.about.is_tier_enforced

    def open(self, project_id: int, size_bytes: int = 0, service_tier: str = "") -> MountedVolumes:
        """Return the storage of the volumes of a project (by id). `size_bytes`, `service_tier`: size and tier of
        volumes that it creates. Raise Blocked if this release does not have the class's driver."""
        if self.about is None:
            words = f"The storage class {self.name} is of the driver {self.driver}, which this release does not have."
            raise Blocked("class_not_configured", words)
        opened: MountedVolumes = resolve_name(self.about.opens)(self, project_id, size_bytes, service_tier)
        return opened


def storage_classes(stated: Mapping[str, Any], state_dir: Path) -> dict[str, StorageClass]:
    """Return the classes by name, the default first; without a configuration, `standard` in the state directory.
    `stated`: the parsed configuration. Raise ValueError, with the reason, if it is invalid."""
    return {name: _class(name, about, state_dir) for name, about in (stated or {DEFAULT_CLASS: {}}).items()}


def _class(name: str, about: Any, state_dir: Path) -> StorageClass:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a storage class; use small letters, digits and hyphens.")
    if not isinstance(about, dict):
        raise ValueError(f"The storage class {name} is an object.")
    driver = drivers().get(str(about.get("driver", next(iter(drivers())))))
    if driver is None:
        raise ValueError(f"The driver of the storage class {name} is one of {', '.join(drivers())}.")
    fields = {"driver", "description", *driver.fields}
    if others := sorted(set(about) - fields):
        known = ", ".join(sorted(fields))
        raise ValueError(
            f"The storage class {name} has the unknown fields {', '.join(others)}; there are {known}."
        )
    description = about.get("description", "")
    if not isinstance(description, str):
        raise ValueError(f"The description of the storage class {name} is a string.")
    read = driver.read(name, about, state_dir)
    return StorageClass(name, read.directory, read.service_tiers, description, driver.name, read.config)
