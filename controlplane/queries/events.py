"""Events as readers may see them."""

from collections.abc import Mapping
from typing import Any

from controlplane.scheduling.mentions import Sees, seen_by, sentence

FOR_ADMINS = ("cluster.leftovers", "cluster.projects_refused", "cluster.nodes_left_out")
"""Kinds of events whose messages may name pods and objects of any project."""

_SHOWN = ("seq", "at", "kind", "actor", "reason", "message", "data")
# The keys in an event's data under which the details of its reason are stored.
_DETAILS = "details"


def seen_event(row: Mapping[str, Any], sees: Sees, project: str | None) -> dict[str, Any]:
    """Return the event `row` (its fields by name) of `project` (None: of no project) as a reader may see it. `sees`:
    projects whose jobs the reader may see (None: all); names of other jobs are hidden. Apply it to every event before
    it leaves the process."""
    shown = {name: row[name] for name in _SHOWN if name in row}
    data = row.get("data") or {}
    allowed = sees if sees is None or project is None else sees | {project}
    details = data.get(_DETAILS) or {}
    shown["message"] = sentence(row["reason"], row["message"], details, allowed)
    if details:
        shown["data"] = data | {_DETAILS: seen_by(details, allowed)}
    return shown
