"""Field `artifacts`: the output files that a job keeps. Pure."""

from collections.abc import Mapping
from typing import Any

from controlplane import fields
from controlplane.api import json_schema as schemas
from controlplane.fields import Refused
from jobs.fields import values

SUCCESS, ALWAYS = "success", "always"
# Names the checkpoint directory as a path; all other paths are below the working directory.
CHECKPOINTS = "$TRAINYARD_CHECKPOINT_DIR"
PATH_MOST = 1024
_name = fields.dns_label(63)


def artifact(value: Any) -> dict[str, str]:
    """Return the artifact that {"path": "out", "name": "model", "when": "success"} declares; `name` defaults to
    the path's last part. Raises Refused if the value is malformed."""
    if not isinstance(value, dict) or "path" not in value or not set(value) <= {"path", "name", "when"}:
        raise Refused("not_an_artifact", 'An artifact is {"path": "out", "name": "model"}, also with when.')
    path = fields.inside(_path, value["path"], "/path")
    name = value.get("name") or _default_name(path)
    when = value.get("when", SUCCESS)
    if when not in (SUCCESS, ALWAYS):
        raise Refused(
            "unknown_moment", f"An artifact is kept on {SUCCESS}, or {ALWAYS} when the job ends.", "/when"
        )
    return {"path": path, "name": fields.inside(_name, name, "/name"), "when": when}


def _default_name(path: str) -> str:
    return "checkpoints" if path == CHECKPOINTS else path.rpartition("/")[2].lower().replace("_", "-")


def _path(value: Any) -> str:
    """Return a relative path without empty and "." components, below the job's working directory or its directory of
    checkpoints. Raises Refused for any other value."""
    text = fields.text(PATH_MOST)(value)
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or text.startswith("/"):
        raise Refused(
            "not_inside",
            "Name a directory below the job's working directory, without `..`, such as out,"
            f" or {CHECKPOINTS}. What is on a volume stays there: take a snapshot of it.",
        )
    return "/".join(parts)


def _write(kept: Mapping[str, Any]) -> str:
    return f"{kept['path']}:{kept['name']}" if kept.get("name") else str(kept["path"])


def _parse(text: str) -> dict[str, Any]:
    path, _, name = text.partition(":")
    return {"path": path, "when": SUCCESS} | ({"name": name} if name else {})


VALUE = values.listed(
    artifact,
    20,
    {"type": "object", "additionalProperties": schemas.STRING},
    parse=_parse,
    write=_write,
    text="DIR[:NAME]",
    separator=values.LINES,
)
