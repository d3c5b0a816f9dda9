"""Names that every user of an API server shares. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# An object of the cluster as JSON, and one that is only read.
Raw: TypeAlias = dict[str, Any]
RawView: TypeAlias = Mapping[str, Any]
# Owner of the fields that server-side apply sets.
FIELD_MANAGER = "trainyard"


def key_of(namespace: str, name: str) -> str:
    """Return `namespace/name`, or `name` for a cluster-scoped object: the key of an object in a reflector's store."""
    return f"{namespace}/{name}" if namespace else name


def selector(labels: Mapping[str, str]) -> str:
    """Return a label selector for a query: `a=b,c=d`."""
    return ",".join(f"{key}={value}" for key, value in labels.items())
