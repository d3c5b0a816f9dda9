"""The topic `activity`: which parts of the instance moved, and at which event.

Pages draw such a part again.

It costs the same however large the cluster is: nothing but the events themselves is read.
"""

from collections.abc import Iterable, Mapping
from typing import Any

MOVED_BY = {
    "jobs": ("job.", "pod.", "command."),
    "queue": ("queue.",),
    "usage": ("telemetry.",),
    "nodes": ("node.", "node_pool.", "cluster."),
    "projects": ("project.", "department."),
}
"""Part -> beginnings of the kinds of events that may change what pages show of it."""

State = dict[str, dict[str, Any]]


def activity_at(seq: int) -> State:
    """Return the state of a topic that is first asked for at event `seq`."""
    return {"moved": {part: {"seq": seq} for part in MOVED_BY}}


def activity_after(state: Mapping[str, Any], events: Iterable[tuple[int, str]]) -> State:
    """Return the state after events, given as (seq, kind) in their order."""
    moved = dict(state["moved"])
    for seq, kind in events:
        for part in parts_of(kind):
            moved[part] = {"seq": seq}
    return {"moved": moved}


def parts_of(kind: str) -> list[str]:
    """Return the parts that an event of this kind may change: all of them when no part knows it."""
    return [part for part, kinds in MOVED_BY.items() if kind.startswith(kinds)] or [*MOVED_BY]
