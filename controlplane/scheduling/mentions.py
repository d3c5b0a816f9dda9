"""Jobs that the details of a reason name, and what remains of them for readers who may not see those jobs.

A job's name and id are visible to readers of its project; its project's name is visible to every user, as the GPUs are
shared. Details keep everything; what leaves the process passes `seen_by` first, and stored sentences are made of what
`public` leaves, so that a reader who forgets this module shows too little and never too much.
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

# the key of the project -> the keys that name a job of it
_KEYS = {"by_project": ("by_job", "by_name"), "reserved_for_project": ("reserved_for", "reserved_for_name")}
_STOPPING = "stopping"
_TOLD = (*(key for pair in _KEYS.items() for key in (pair[0], *pair[1])), "kind", "resource")

Details = Mapping[str, Any]


def mention(project: str, job_id: str, name: str) -> dict[str, Any]:
    """Return a job as an element of details["stopping"]."""
    return {"project": project, "job": job_id, "name": name}


def seen_by(details: Details, sees: Sees) -> Details:
    """Return the details as a reader sees them: jobs of other projects than `sees` by project alone. What does not say
    which project it is of, such as a row of an earlier version, is hidden from all who do not see everything."""
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
    """Return what a reader is shown as the message of a reason: `message`, or for a reason that names a job the
    sentence made anew of what the reader may see. `details` need not be reduced."""
    if code in NAMING or (not message and code in reasons.REASONS):
        return reasons.describe(code, seen_by(details, sees))
    return message


def public(code: str, details: Details) -> str:
    """Return the sentence that is stored: one that every user may read."""
    return reasons.describe(code, seen_by(details, OWN))


def named_projects(details: Details) -> frozenset[str]:
    """Return the projects of the jobs that these details name, "" for a job of unknown project."""
    return frozenset(_named(details))


def told(code: str, details: Details) -> dict[str, Any]:
    """Return the part of a reason's details that its event keeps, so that readers can be shown its sentence."""
    return {key: details[key] for key in _TOLD if key in details} if code in NAMING else {}


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
