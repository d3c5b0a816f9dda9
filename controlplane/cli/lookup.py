"""Find objects of the API by the names that users type."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from controlplane.cli.client import segment
from controlplane.cli.errors import (
    DONE,
    LOG_IN,
    NOT_FOUND,
    TIMED_OUT,
    UNREACHABLE,
    USAGE,
    CliError,
    error_lines,
)
from controlplane.cli.session import ROWS_MOST, Session

_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z")
FINAL_STATES = frozenset({"succeeded", "failed", "stopped", "timed_out"})


def job_id(session: Session, name: str) -> str:
    """Return the id of the project's newest job with that name; an id is returned unchanged, without a request. Raise
    CliError (3) if no job has the name."""
    return name if is_id(name) else jobs_named(session, name, limit=1)[0]


def is_id(name: str) -> bool:
    """Return whether the text has the form of a job's id (UUID) rather than of a name."""
    return _ID.match(name) is not None


def jobs_named(session: Session, name: str, limit: int = 500) -> list[str]:
    """Return the ids of the project's jobs with that name, newest first, at most `limit`. Raise CliError (3) if there
    is none."""
    return [str(row["id"]) for row in _rows_named(session, name, limit)]


def newest_job(session: Session, name: str) -> dict[str, Any]:
    """Return the project's newest job with that name, as a row of the list of jobs. Raise CliError (3) if there is
    none."""
    return _rows_named(session, name, limit=1)[0]


def project_rows(
    session: Session, path: str, query: dict[str, Any], *, all_projects: bool = False
) -> dict[str, Any]:
    """Return a list of the API: the rows of the project, with `all_projects` those of all projects, at most
    ROWS_MOST. `path`: the list's path; `query`: more filters. Raise CliError (3) if the project does not exist."""
    if all_projects:
        return session.client.pages(path, query, ROWS_MOST)
    rows = session.client.pages(path, {"project": session.project, **query}, ROWS_MOST)
    if not rows["results"]:
        session.get(session.project_path)
    return rows


def require_name(name: str, what: str) -> None:
    """Raise CliError (2) for an empty name, such as an unset variable of a script gives. `what`: the kind of object,
    for the message."""
    if not name:
        raise CliError(f"an empty name names no {what}", USAGE)


def _rows_named(session: Session, name: str, limit: int) -> list[dict[str, Any]]:
    require_name(name, "job")
    rows: list[dict[str, Any]] = session.get(f"{session.project_path}/jobs", name=name, limit=limit)[
        "results"
    ]
    if not rows:
        hint = f"see: yard list jobs -p {session.project}"
        raise CliError(f"project {session.project} has no job {name!r}", NOT_FOUND, hint)
    return rows


def each_name(names: list[str], session: Session, act: Callable[[str], None]) -> int:
    """Call `act` for each name, and return the highest exit code. The error for one name is printed, and the next
    name follows. Raise the error at once if there is only one name, or if every name would meet it: no server, a
    timeout, wrong usage, no login."""
    worst = DONE
    for name in names:
        try:
            act(name)
        except CliError as error:
            is_for_all = error.exit_code in (UNREACHABLE, TIMED_OUT, USAGE) or error.hint == LOG_IN
            if len(names) == 1 or is_for_all:
                raise
            session.output.say("\n".join(error_lines(error)))
            worst = max(worst, error.exit_code)
    return worst


def find_job(session: Session, name: str) -> dict[str, Any]:
    """Return a job in REST form: the one with the id `name`, else the project's newest with that name. Raise CliError
    (3) if there is none."""
    job: dict[str, Any] = session.get(f"jobs/{job_id(session, name)}")
    return job


def project_path(name: str) -> str:
    return f"projects/{segment(name)}"


def node_path(name: str) -> str:
    return f"nodes/{segment(name)}"
