"""The driver for Azure NetApp Files: fields of its storage classes and their checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from datasets.storage.drivers import (
    OBJECT_NAME,
    SERVICE_TIERS,
    Driver,
    DriverSettings,
    https,
    mount_root,
    texts,
)


@dataclass(frozen=True, slots=True)
class AnfConfig:
    """An account of Azure NetApp Files. `pools`: the capacity pool of each service tier, the default tier first.
    `subnet`: the resource id of the delegated subnet. `credentials`: the path of a file, "" for the environment.
    `ca_file`: trusted certificate authorities, "" for the machine's own. `allowed_clients`: addresses that may mount
    volumes. `endpoint` and `authority`: the API and sign-in addresses of a cloud other than Azure's public one."""

    subscription: str
    resource_group: str
    account: str
    location: str
    subnet: str
    pools: Mapping[str, str]
    allowed_clients: str = "0.0.0.0/0"
    credentials: str = ""
    ca_file: str = ""
    endpoint: str = ""
    authority: str = ""


_KEYS = {field.name for field in fields(AnfConfig)}
_NEEDED = ("subscription", "resource_group", "account", "location")
_SUBNET = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/[^/]+/virtualNetworks/[^/]+/subnets/[^/]+"
)


def read(name: str, stated: Mapping[str, Any], state_dir: Path) -> DriverSettings:
    """Return the settings of the storage class `name` on Azure NetApp Files from its parsed configuration
    `stated` (see Driver.read). Raise ValueError, with the reason, if it is invalid."""
    root, pools = mount_root(name, stated), stated.get("pools")
    if not isinstance(pools, dict) or not pools or not pools.keys() <= SERVICE_TIERS.keys():
        words = f"capacity pools by {', '.join(SERVICE_TIERS)}"
        raise ValueError(f"The storage class {name} needs `pools`: {words}.")
    found = texts(name, {key: value for key, value in stated.items() if key in _KEYS - {"pools"}})
    for key in _NEEDED:
        if not OBJECT_NAME.fullmatch(found.get(key, "")):
            raise ValueError(f"The storage class {name} needs `{key}`.")
    if not all(isinstance(pool, str) and OBJECT_NAME.fullmatch(pool) for pool in pools.values()):
        raise ValueError(f"The pools of the storage class {name} are names of capacity pools.")
    if not _SUBNET.fullmatch(found.get("subnet", "")):
        raise ValueError(f"The storage class {name} needs `subnet`, the resource id of a delegated subnet.")
    for key in ("endpoint", "authority"):
        if key in found:
            https(name, found[key])
    tiers = {tier: SERVICE_TIERS[tier] for tier in pools}
    return DriverSettings(root, tiers, AnfConfig(pools=dict(pools), **found))


DRIVER = Driver(
    name="anf",
    fields=frozenset({"mount_root", *_KEYS}),
    read=read,
    opens="datasets.storage.anf:open_class",
    is_size_enforced=True,
    is_tier_enforced=True,
    package="azure-mgmt-netapp",
)
