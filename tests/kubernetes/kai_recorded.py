"""A recording of KAI's answers: for each step, the pods, pod groups and events that differ from the step before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.engines.kubernetes import kai, names

FILE = Path(__file__).parent / "recorded" / "kai_four_teams.json"
Everything = dict[str, list[dict[str, Any]]]

_LABELS = (names.JOB_NAME, names.JOB_ID, names.ATTEMPT, names.RANK, kai.DEVICE_GROUP)
_KEPT: Mapping[str, tuple[str, ...]] = {
    "metadata": ("name", "namespace", "deletionTimestamp", "creationTimestamp"),
    "spec": ("nodeName", "queue", "minMember", "preemptibility"),
    "status": ("phase", "schedulingConditions"),
}
_NOTED = (kai.POD_GROUP, kai.GPU_FRACTION)
_EVENT = ("reason", "message", "involvedObject")


def trimmed(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a pod, pod group or event with only the fields that the tests read."""
    kept = {part: _only(raw[part], keys) for part, keys in _KEPT.items() if part in raw}
    for part in ("labels", "annotations"):
        found = raw["metadata"].get(part) or {}
        is_ours = "evictor-pod-group-name" not in found
        kept["metadata"] |= {part: _only(found, (*_LABELS, *_NOTED))} if is_ours else {part: found}
    return {**kept, **_only(raw, _EVENT)}


def changed(now: Everything, before: Everything) -> Everything:
    """Return the objects of `now`, by kind, that are not in `before` in the same form."""
    known = {json.dumps(item, sort_keys=True) for items in before.values() for item in items}
    return {
        kind: [item for item in items if json.dumps(item, sort_keys=True) not in known]
        for kind, items in now.items()
    }


def _only(fields: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: fields[key] for key in keys if key in fields}
