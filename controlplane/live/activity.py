"""The topic `activity`: for each part of the instance, the number of the event that last changed it. Pages
compare these numbers to decide what to reload.

Computed from the events alone, so its cost does not depend on the size of the cluster.
"""

from collections.abc import Iterable, Mapping
from typing import Any

MOVED_BY = {
    "jobs": ("job.", "pod.", "command."),
    "queue": ("queue.",),
    "usage": ("telemetry.",),
    "nodes": ("node.", "node_pool.", "cluster."),
    "projects": ("project.", "department."),
    "volumes": ("volume.", "snapshot."),
    "caches": ("cache.", "cache_location."),
    "datasets": ("dataset.",),
}
"""Part of the instance -> prefixes of the kinds of events that may change its pages."""
# These change no list: only the page of one job or file shows them.
WITHOUT_LIST = ("artifact.", "code.")

State = dict[str, dict[str, Any]]


def activity_at(seq: int) -> State:
    """Return the initial state of the topic: each part last changed at event number `seq`."""
    return {"moved": {part: {"seq": seq} for part in MOVED_BY}}


def activity_after(state: Mapping[str, Any], events: Iterable[tuple[int, str]]) -> State:
    """Return the state after these events; `state` is unchanged. `events`: (number, kind) in ascending order."""
    moved = dict(state["moved"])
    for seq, kind in events:
        for part in parts_of(kind):
            moved[part] = {"seq": seq}
    return {"moved": moved}


def parts_of(kind: str) -> list[str]:
    """Return the parts that an event of this kind may change; all parts for an unknown kind."""
    if kind.startswith(WITHOUT_LIST):
        return []
    return [part for part, kinds in MOVED_BY.items() if kind.startswith(kinds)] or [*MOVED_BY]
