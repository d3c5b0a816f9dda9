"""The jobs that the details of a reason name, and the form in which readers may see them.

A job's name and id are visible only to readers of its project; a project's name is visible to every user,
because the GPUs are shared. Stored details are complete: pass them through `seen_by` before they leave the
process. Stored sentences are built with `public`, so a caller that omits `seen_by` shows too little and never
too much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from controlplane.scheduling import reasons

Sees: TypeAlias = frozenset[str] | None
"""Names of the projects whose jobs a reader may see; None: all of them."""

OWN: Sees = frozenset()
"""A reader of one project only: the project that the details belong to."""

NAMING = frozenset({reasons.PREEMPTED, reasons.RESERVED_FOR_OLDER_GANG})
"""The reasons whose sentence names a job."""

# Project key -> the keys that name a job of that project.
_KEYS = {"by_project": ("by_job", "by_name"), "reserved_for_project": ("reserved_for", "reserved_for_name")}
_STOPPING = "stopping"
_STORED = (*(key for pair in _KEYS.items() for key in (pair[0], *pair[1])), "kind", "resource")

Details = Mapping[str, Any]


def mention(project: str, job_id: str, name: str) -> dict[str, Any]:
    """Return a job in the form of an entry of details["stopping"]."""
    return {"project": project, "job": job_id, "name": name}


def seen_by(details: Details, sees: Sees) -> Details:
    """Return the details as a reader may see them who sees the jobs of the projects `sees` (None: all). Of
    other projects' jobs only the project is left. Entries without a project, such as those of earlier versions,
    are hidden."""
    if sees is None:
        return details
    hidden = {
        key
        for project, keys in _KEYS.items()
        if details.get(project) not in sees
        for key in keys
        if key in details
    }
    shown = {key: value for key, value in details.items() if key not in hidden}
    if _STOPPING in shown:
        shown[_STOPPING] = [_seen(one, sees) for one in shown[_STOPPING] or ()]
    return shown


def sentence(code: str, message: str, details: Details, sees: Sees) -> str:
    """Return the sentence of a reason for a reader of the projects `sees`. If it names a job, or `message` is "", it
    is made from what the reader may see; else it is `message`. `details`: all of them."""
    if code in NAMING or (not message and code in reasons.REASONS):
        return reasons.describe(code, seen_by(details, sees))
    return message


def public(code: str, details: Details) -> str:
    """Return the sentence of a reason as it may be stored: every user may read it."""
    return reasons.describe(code, seen_by(details, OWN))


def named_projects(details: Details) -> frozenset[str]:
    """Return the projects of the jobs that these details name; "" for a job whose project is unknown."""
    return frozenset(_named(details))


def details_to_store(code: str, details: Details) -> dict[str, Any]:
    """Return those of `details` that are stored with an event, so that `sentence` can name for each reader the jobs
    that the reader may see. {} if the reason `code` names no job."""
    return {key: details[key] for key in _STORED if key in details} if code in NAMING else {}


def _named(details: Details) -> Iterator[str]:
    for project, keys in _KEYS.items():
        if any(key in details for key in keys):
            yield str(details.get(project) or "")
    stopping: Sequence[Any] = details.get(_STOPPING) or ()
    for one in stopping:
        yield str(one["project"]) if isinstance(one, Mapping) else ""


def _seen(one: Any, sees: frozenset[str]) -> dict[str, Any]:
    if not isinstance(one, Mapping):
        return {"project": None, "job": None, "name": None}
    return dict(one) if one["project"] in sees else {**one, "job": None, "name": None}
