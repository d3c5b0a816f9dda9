"""Storage classes of volumes, as the installation configures them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_CLASS = "standard"
SERVICE_TIERS: Mapping[str, int] = {"standard": 16, "premium": 64, "ultra": 128}
"""MiB/s per TiB of a volume's size, by service tier, where a class names no others."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEYS = {"directory", "service_tiers", "description"}


@dataclass(frozen=True, slots=True)
class StorageClass:
    """Where volumes of one class lie. `service_tiers`: MiB/s per TiB by tier, the default tier first."""

    name: str
    directory: Path
    service_tiers: Mapping[str, int]
    description: str = ""

    @property
    def default_tier(self) -> str:
        return next(iter(self.service_tiers))


def storage_classes(stated: Mapping[str, Any], state_dir: Path) -> dict[str, StorageClass]:
    """Return the classes by name, the default first; without a statement, `standard` in the state directory. Raises
    ValueError with what is wrong."""
    return {name: _class(name, about, state_dir) for name, about in (stated or {DEFAULT_CLASS: {}}).items()}


def _class(name: str, about: Any, state_dir: Path) -> StorageClass:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a storage class; use small letters, digits and hyphens.")
    if not isinstance(about, dict) or not set(about) <= _KEYS:
        raise ValueError(f"The storage class {name} has other fields than {', '.join(sorted(_KEYS))}.")
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
