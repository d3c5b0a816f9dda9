"""From the name that a person types to the object that the API knows."""

from __future__ import annotations

import re
from typing import Any

from controlplane.cli.client import segment
from controlplane.cli.errors import NOT_FOUND, CliError
from controlplane.cli.session import Session

_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z")
FINAL_STATES = frozenset({"succeeded", "failed", "stopped", "timed_out"})


def job_id(session: Session, name: str) -> str:
    """The id of the project's newest job of that name; an id is taken as it is."""
    if _ID.match(name):
        return name
    page = session.get(f"{session.project_path}/jobs", name=name, limit=1)
    if not page["results"]:
        hint = f"see: yard list jobs -p {session.project}"
        raise CliError(f"project {session.project} has no job {name!r}", NOT_FOUND, hint)
    return str(page["results"][0]["id"])


def find_job(session: Session, name: str) -> dict[str, Any]:
    """The job object, as REST answers it."""
    job: dict[str, Any] = session.get(f"jobs/{job_id(session, name)}")
    return job


def project_path(name: str) -> str:
    """A project's place in the API."""
    return f"projects/{segment(name)}"


def node_path(name: str) -> str:
    """A node's place in the API."""
    return f"nodes/{segment(name)}"
