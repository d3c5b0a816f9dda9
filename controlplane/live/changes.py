"""Compute and apply the difference between two states of a topic. No I/O.

A state is {collection: {key: record}}; records are JSON values and are replaced whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Record: TypeAlias = Any
State: TypeAlias = Mapping[str, Mapping[str, Record]]

NOTHING: dict[str, Record] = {}


@dataclass(frozen=True, slots=True)
class Change:
    """What turns one state into another: new and different records, and (collection, key) of removed ones. The object
    is false if the states are equal."""

    upserts: Mapping[str, Mapping[str, Record]]
    deletes: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return bool(self.upserts or self.deletes)


def diff(old: State, new: State) -> Change:
    """Return the change that turns `old` into `new`. An empty collection equals a missing one."""
    upserts: dict[str, dict[str, Record]] = {}
    deletes: list[tuple[str, str]] = []
    for collection, records in new.items():
        before = old.get(collection, NOTHING)
        changed = {
            key: record for key, record in records.items() if key not in before or before[key] != record
        }
        if changed:
            upserts[collection] = changed
    for collection, records in old.items():
        after = new.get(collection, NOTHING)
        deletes += [(collection, key) for key in records if key not in after]
    return Change(upserts, tuple(deletes))


def apply(state: State, change: Change) -> dict[str, dict[str, Record]]:
    """Return a copy of `state` with `change` applied. A collection that becomes empty remains as {}."""
    result = {collection: dict(records) for collection, records in state.items()}
    for collection, records in change.upserts.items():
        result.setdefault(collection, {}).update(records)
    for collection, key in change.deletes:
        result.get(collection, NOTHING).pop(key, None)
    return result


def without_empty(state: State) -> dict[str, dict[str, Record]]:
    """Return `state` without its empty collections, so that states which differ only in these compare as equal."""
    return {collection: dict(records) for collection, records in state.items() if records}
