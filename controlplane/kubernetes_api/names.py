"""Names and types that all users of an API server share. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# An object of the cluster as JSON, modifiable and read-only.
Raw: TypeAlias = dict[str, Any]
RawView: TypeAlias = Mapping[str, Any]
# The field manager that owns the fields which server-side apply sets.
FIELD_MANAGER = "trainyard"


def key_of(namespace: str, name: str) -> str:
    """Return an object's key in a reflector's store: `namespace/name`, or `name` if `namespace` is ""
    (cluster-scoped)."""
    return f"{namespace}/{name}" if namespace else name


def selector(labels: Mapping[str, str]) -> str:
    """Return the label selector that matches all these labels: `a=b,c=d`."""
    return ",".join(f"{key}={value}" for key, value in labels.items())
