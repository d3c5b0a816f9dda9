"""The driver for directories on the control plane's machine: fields of its storage classes and their checks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets.storage.drivers import SERVICE_TIERS, Driver, DriverSettings


def read(name: str, stated: Mapping[str, Any], state_dir: Path) -> DriverSettings:
    """Return the directory and the service tiers, which are recorded but not enforced, of the storage class
    `name` from its parsed configuration `stated` (see Driver.read). Raise ValueError, with the reason, if it is
    invalid."""
    directory, tiers = stated.get("directory", f"volumes/{name}"), stated.get("service_tiers", SERVICE_TIERS)
    if not isinstance(directory, str):
        raise ValueError(f"The directory of the storage class {name} is a string.")
    is_usable = (
        isinstance(tiers, Mapping)
        and tiers
        and all(type(rate) is int and rate > 0 for rate in tiers.values())
    )
    if not is_usable:
        raise ValueError(f"The service_tiers of the storage class {name} are MiB/s per TiB by name, above 0.")
    return DriverSettings((state_dir / directory).resolve(), dict(tiers))


DRIVER = Driver(
    name="folder",
    fields=frozenset({"directory", "service_tiers"}),
    read=read,
    opens="datasets.storage.volumes:open_class",
)
