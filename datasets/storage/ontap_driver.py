"""The driver for ONTAP systems: fields of its storage classes and their checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets.storage.drivers import OBJECT_NAME, Driver, DriverSettings, https, mount_root, texts

_KEYS = {"endpoint", "svm", "aggregate", "junction", "export_policy", "credentials", "ca_file"}
_JUNCTION = re.compile(r"(/[A-Za-z0-9_.-]+)*")


@dataclass(frozen=True, slots=True)
class OntapConfig:
    """An SVM of an ONTAP system. `aggregate`: where its volumes are created. `junction`: the path in its namespace
    below which volumes are mounted, "" for its root; admins mount it on each machine. `credentials`: the path of a
    file, "" for the environment. `ca_file`: trusted certificate authorities, "" for the machine's own."""

    host: str
    port: int
    svm: str
    aggregate: str
    junction: str = ""
    export_policy: str = "default"
    credentials: str = ""
    ca_file: str = ""


def read(name: str, stated: Mapping[str, Any], state_dir: Path) -> DriverSettings:
    """Return the settings of the storage class `name` on ONTAP from its parsed configuration `stated` (see
    Driver.read). Raise ValueError, with the reason, if it is invalid."""
    root, found = mount_root(name, stated), texts(name, {key: stated.get(key, "") for key in _KEYS})
    host, port = https(name, found["endpoint"])
    for key in ("svm", "aggregate"):
        if not OBJECT_NAME.fullmatch(found[key]):
            raise ValueError(f"The storage class {name} needs `{key}`, a name in ONTAP.")
    junction = found["junction"].rstrip("/")
    if not _JUNCTION.fullmatch(junction) or ".." in junction:
        raise ValueError(f"The junction of the storage class {name} is a path such as /trainyard.")
    policy = found["export_policy"] or "default"
    rest = (policy, found["credentials"], found["ca_file"])
    return DriverSettings(
        root, config=OntapConfig(host, port, found["svm"], found["aggregate"], junction, *rest)
    )


DRIVER = Driver(
    name="ontap",
    fields=frozenset({"mount_root", *_KEYS}),
    read=read,
    opens="datasets.storage.ontap:open_class",
    is_size_enforced=True,
    package="netapp-ontap",
)
