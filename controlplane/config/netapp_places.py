"""The NetApp systems of storage classes that have a driver. Pure: reads no file and opens no connection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,202}")
_JUNCTION = re.compile(r"(/[A-Za-z0-9_.-]+)*")


@dataclass(frozen=True, slots=True)
class OntapPlace:
    """An SVM of an ONTAP system. `junction`: the path in its namespace below which volumes are mounted, "" for its
    root; admins mount it on each machine. `credentials`: a file, "" for the environment. `ca_file` "": the
    machine's own certificate authorities."""

    host: str
    port: int
    svm: str
    aggregate: str
    junction: str = ""
    export_policy: str = "default"
    credentials: str = ""
    ca_file: str = ""


@dataclass(frozen=True, slots=True)
class AnfPlace:
    """An account of Azure NetApp Files. `pools`: the capacity pool of each service tier, the default tier first.
    `subnet`: the resource id of the delegated subnet. `credentials` and `ca_file`: as for ONTAP. `allowed_clients`:
    addresses that may mount volumes. `endpoint` and `authority`: for clouds other than Azure's public one."""

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


ONTAP_KEYS = {"endpoint", "svm", "aggregate", "junction", "export_policy", "credentials", "ca_file"}


def ontap_place(name: str, about: Mapping[str, Any]) -> OntapPlace:
    """Return the SVM that a storage class declares. Raise ValueError with the reason."""
    found = {key: about.get(key, "") for key in ONTAP_KEYS}
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"The fields of the storage class {name} are strings.")
    host, port = _https(name, found["endpoint"])
    for key in ("svm", "aggregate"):
        if not _NAME.fullmatch(found[key]):
            raise ValueError(f"The storage class {name} needs `{key}`, a name in ONTAP.")
    junction = found["junction"].rstrip("/")
    if not _JUNCTION.fullmatch(junction) or ".." in junction:
        raise ValueError(f"The junction of the storage class {name} is a path such as /trainyard.")
    policy = found["export_policy"] or "default"
    rest = (policy, found["credentials"], found["ca_file"])
    return OntapPlace(host, port, found["svm"], found["aggregate"], junction, *rest)


ANF_KEYS = {field.name for field in fields(AnfPlace)}
ANF_TIERS = ("standard", "premium", "ultra")
_ANF_NEEDED = ("subscription", "resource_group", "account", "location")
_SUBNET = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/[^/]+/virtualNetworks/[^/]+/subnets/[^/]+"
)


def anf_place(name: str, about: Mapping[str, Any]) -> AnfPlace:
    """Return the account that a storage class declares. Raise ValueError with the reason."""
    pools = about.get("pools")
    if not isinstance(pools, dict) or not pools or not set(pools) <= set(ANF_TIERS):
        raise ValueError(f"The storage class {name} needs `pools`: capacity pools by {', '.join(ANF_TIERS)}.")
    stated = {key: value for key, value in about.items() if key in ANF_KEYS - {"pools"}}
    if not all(isinstance(value, str) for value in stated.values()):
        raise ValueError(f"The fields of the storage class {name} are strings.")
    for key in _ANF_NEEDED:
        if not _NAME.fullmatch(stated.get(key, "")):
            raise ValueError(f"The storage class {name} needs `{key}`.")
    if not all(isinstance(pool, str) and _NAME.fullmatch(pool) for pool in pools.values()):
        raise ValueError(f"The pools of the storage class {name} are names of capacity pools.")
    if not _SUBNET.fullmatch(stated.get("subnet", "")):
        raise ValueError(f"The storage class {name} needs `subnet`, the resource id of a delegated subnet.")
    for key in ("endpoint", "authority"):
        if key in stated:
            _https(name, stated[key])
    return AnfPlace(pools=dict(pools), **stated)


def _https(name: str, endpoint: str) -> tuple[str, int]:
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
