"""Field `code`: the code tree that a job uses. Pure."""

from collections.abc import Mapping
from typing import Any

from controlplane import fields
from controlplane.api import json_schema as schemas
from controlplane.fields import Refused
from jobs.fields import values

_READERS = {
    "tree": fields.text(71),
    "commit": fields.text(64),
    "branch": fields.text(255),
    "is_dirty": fields.switch,
    "source": fields.text(8),
    "repository": fields.text(500),
}
# Keys that describe the origin of a tree's commit.
ORIGIN: dict[str, schemas.Schema] = dict.fromkeys(_READERS, schemas.STRING) | {"is_dirty": schemas.BOOLEAN}
_SHOWN = schemas.record(
    "The code tree that the job runs: `tree` is its hash; `is_dirty`: it differs from the commit; `source`: upload or"
    " git.",
    **ORIGIN,
)
_WANTED = {
    **schemas.record("A code tree of the project, under one of its commits or the latest.", **ORIGIN),
    "required": ["tree"],
}


def wanted(value: Any) -> dict[str, Any]:
    """Return {"tree": "sha256:...", "commit": "9c1f2ab"} with its fields checked. Further keys that answers have, such
    as `branch`, are accepted so that a job can be sent back, but the stored tree defines their values. Raises Refused
    if the value is malformed."""
    if not isinstance(value, dict):
        raise Refused("not_an_object", 'Code is {"tree": "sha256:..."}.')
    for name in value:
        if name not in _READERS:
            raise Refused(
                "unknown_field",
                "There is no such field; check its spelling.",
                f"/{fields.pointer_part(name)}",
            )
    if "tree" not in value:
        raise Refused("required", "Name the tree.", "/tree")
    return {name: fields.inside(_READERS[name], each, f"/{name}") for name, each in value.items()}


def _parse(text: str) -> dict[str, str]:
    tree, _, commit = text.partition("@")
    return {"tree": tree, "commit": commit} if commit else {"tree": tree}


def _write(code: Mapping[str, Any]) -> str:
    return f"{code['tree']}@{code['commit']}" if code.get("commit") else str(code["tree"])


VALUE = values.value(wanted, _WANTED, answer=_SHOWN, parse=_parse, write=_write).optional()
