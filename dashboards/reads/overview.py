"""The first page, from the very state that the live topic `overview` has, so that the first frame changes nothing."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from controlplane.access import Actor, visible_project_names
from controlplane.live.reading import one_moment
from controlplane.live.state import ROWS_MOST, State, read_overview
from controlplane.models import Event, Role
from dashboards import formats
from dashboards.reads.projects import bar, roles_of

Row = dict[str, Any]
BLANK = dict.fromkeys(("id", "name", "project", "user", "kind", "message"), "") | dict.fromkeys(
    ("node", "gpus", "started_at", "queued_at", "progress", "gpu_utilization")
)  # the row that the browser fills for a job that is new
BLANK_PROJECT = {"name": "", "palette_index": 0, "allocated_gpus": 0, "gpu_quota": 0, "is_visible": True}
MANY_NODES, HEAT_NODES = 8, 40  # from here on cells are small; from here on they are a heat map


def overview_state(actor: Actor) -> tuple[State, int]:
    """The state as the actor sees it, and the number of the newest event in it."""
    with one_moment():
        seq = Event.objects.last_seq()
        whole = read_overview(seq)
    return whole.seen_by(visible_project_names(actor)), seq


def overview_page(actor: Actor, now: datetime) -> Row:
    """Everything that the template shows, in its order."""
    state, _seq = overview_state(actor)
    mine = None if actor.is_admin else roles_of(actor)
    projects = [
        row | {"is_visible": mine is None or row["name"] in mine} for row in state["projects"].values()
    ]
    usable = sorted(
        state["projects"] if mine is None else [name for name in mine if mine[name] != Role.VIEWER]
    )
    full = (
        max(
            (max(row["gpu_quota"], row["allocated_gpus"], row["fair_share_gpus"]) for row in projects),
            default=0,
        )
        or 1
    )
    return {
        "totals": state["totals"]["all"],
        "under": sentences(state, now),
        "projects": [row | {"bar": bar(row["gpu_quota"], row, full)} for row in projects],
        "running": sorted(state["running"].values(), key=_newest_first),
        "queued": sorted(state["queued"].values(), key=_in_line),
        "nodes": [
            _node(node, state) for node in sorted(state["nodes"].values(), key=lambda node: str(node["name"]))
        ],
        "palette": {name: row["palette_index"] for name, row in state["projects"].items()},
        "mine": None if mine is None else sorted(mine),
        "usable": usable[0] if usable else None,
        "empty": empty_words(state),
        "blank": BLANK,
        "blank_project": BLANK_PROJECT,
        "density": density(len(state["nodes"])),
    }


def density(nodes: int) -> str:
    """How large device cells are: a class of components.css."""
    return "nodes-heat" if nodes > HEAT_NODES else "nodes-many" if nodes > MANY_NODES else ""


def empty_words(state: State) -> dict[str, str]:
    """What stands where no job is listed; static/js/overview.js says the same."""
    return {
        "running": _("No job of your projects runs.") if _hides(state, "running") else _("Nothing runs."),
        "queued": _("No job of your projects waits.") if _hides(state, "queued") else _("Nobody waits."),
    }


def sentences(state: State, now: datetime) -> dict[str, str]:
    """The one sentence under each figure; static/js/overview.js says the same. Everything from the state itself."""
    projects = state["projects"].values()
    borrowed = sum(max(0, row["allocated_gpus"] - row["gpu_quota"]) for row in projects)
    return {
        "nodes": _node_states(state) or _("all ready"),
        "gpus": _models(state),
        "gpus_allocated": _("{gpus} over quota").format(gpus=formats.number(borrowed))
        if borrowed
        else _("all within quota"),
        "gpus_idle_allocated": _idle_jobs(state),
        "gpu_utilization": _busy(state),
        "jobs_running": _by_kind(state) or _("nothing runs"),
        "jobs_queued": _longest_wait(state, now) or _("nobody waits"),
    }


def _node_states(state: State) -> str:
    totals = state["totals"]["all"]
    missing = totals["nodes"] - totals["nodes_ready"]
    cordoned = sum(_status(node) == _("cordoned") for node in state["nodes"].values())
    counts = ((_("{count} not ready"), missing), (_("{count} cordoned"), cordoned))
    return ", ".join(text.format(count=count) for text, count in counts if count)


def _models(state: State) -> str:
    devices = [device for node in state["nodes"].values() for device in node["devices"]]
    kinds = Counter(
        " ".join(part for part in (device["model"], formats.mebibytes(device["memory_mib"])) if part)
        for device in devices
    )
    return ", ".join(name for name, _count in kinds.most_common(2)) or formats.NOTHING


def _idle_jobs(state: State) -> str:
    idle = sorted(
        {
            state["running"][share["job"]]["name"]
            for node in state["nodes"].values()
            for device in node["devices"]
            if device["utilization"] == 0
            for share in device["shares"]
            if share["job"] in state["running"]
        }
    )
    if idle:
        return ", ".join(idle[:2]) + ("…" if len(idle) > 2 else "")
    return _yours(0) if state["totals"]["all"].get("gpus_idle_allocated") else _("none")


def _busy(state: State) -> str:
    uses = [device["utilization"] for node in state["nodes"].values() for device in node["devices"]]
    busy = [use for use in uses if use]
    if busy:
        return _("{share} of busy devices").format(share=formats.percent(sum(busy) / len(busy)))
    return _("nothing measures it") if uses and set(uses) == {None} else _("no device is busy")


def _by_kind(state: State) -> str:
    if _hides(state, "running"):
        return _yours(len(state["running"]))
    kinds = Counter(row["kind"] for row in state["running"].values())
    return ", ".join(
        f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    )


def _longest_wait(state: State, now: datetime) -> str:
    if _hides(state, "queued"):
        return _yours(len(state["queued"]))
    waits = [(now - moment(row["queued_at"])).total_seconds() for row in state["queued"].values()]
    return _("longest {time}").format(time=formats.duration(max(waits))) if waits else ""


def _yours(count: int) -> str:
    return _("{count} in your projects").format(count=count) if count else _("none in your projects")


def _hides(state: State, name: str) -> bool:
    """True when there are jobs that the actor does not see, beyond those that the state leaves out for their number."""
    return len(state[name]) < min(int(state["totals"]["all"].get(f"jobs_{name}", 0)), ROWS_MOST)


def moment(value: datetime | str) -> datetime:
    """A time of a state, which is a datetime or its text."""
    parsed = value if isinstance(value, datetime) else parse_datetime(value)
    if parsed is None:
        raise ValueError(f"not a time: {value!r}")
    return parsed


def _node(node: Mapping[str, Any], state: State) -> Row:
    first = node["devices"][0] if node["devices"] else None
    about = (
        " · ".join(part for part in (first["model"], formats.mebibytes(first["memory_mib"])) if part)
        if first
        else ""
    )
    return {
        **node,
        "about": _status(node) or about,
        "cells": [cell(device, state) for device in node["devices"]],
    }


def _status(node: Mapping[str, Any]) -> str:
    if not node["is_reachable"]:
        return _("not reachable")
    return _("not ready") if not node["is_ready"] else _("cordoned") if node["is_cordoned"] else ""


def cell(device: Mapping[str, Any], state: State) -> Row:
    """One device as its cell draws it: shares side by side in percent of the device, filled to their utilisation."""
    x, parts = 0.0, []
    for share in device["shares"]:
        width = share["milli_gpus"] / 10
        used = _share_use(device, share, state)
        parts.append(
            {
                "x": formats.rounded(x, 2),
                "width": formats.rounded(width, 2),
                "y": formats.rounded(100 - 100 * used, 1),
                "height": formats.rounded(100 * used, 1),
                "project": share["project"],
                "palette_index": state["projects"].get(share["project"], {}).get("palette_index", 0),
            }
        )
        x += width
    return {
        "index": device["index"],
        "parts": parts,
        "is_idle": bool(parts) and device["utilization"] == 0,
        "is_foreign": device["is_foreign"],
        "title": _title(device, state),
    }


def holders(state: State, node: str) -> dict[int, list[Row]]:
    """Who holds each device of a node, by its index: {"job", "name", "project", "share"}; job and name are None for
    jobs that the reader does not see."""
    devices = state["nodes"].get(node, {}).get("devices", [])
    return {
        device["index"]: [
            {
                "job": share["job"] if share["job"] in state["running"] else None,
                "name": state["running"].get(share["job"], {}).get("name"),
                "project": share["project"],
                "share": share["milli_gpus"] / 1000,
            }
            for share in device["shares"]
        ]
        for device in devices
    }


def _share_use(device: Mapping[str, Any], share: Mapping[str, Any], state: State) -> float:
    """A whole device shows its own utilisation; a fraction its job's, as far as it is known."""
    if share["milli_gpus"] < 1000 and share["job"] in state["running"]:
        own = state["running"][share["job"]]["gpu_utilization"]
        if own is not None:
            return float(own)
    return float(device["utilization"] or 0)


def _title(device: Mapping[str, Any], state: State) -> str:
    names = [
        f"{state['running'][share['job']]['name'] if share['job'] in state['running'] else share['project']}"
        + (f" ({formats.number(share['milli_gpus'] / 1000)})" if share["milli_gpus"] < 1000 else "")
        for share in device["shares"]
    ]
    use = formats.percent(device["utilization"])
    return (
        f"GPU {device['index']}: {', '.join(names)}, {use}"
        if names
        else f"GPU {device['index']}: {_('used by others') if device['is_foreign'] else _('free')}"
    )


def _newest_first(row: Row) -> tuple[bool, float, str]:
    started = row["started_at"]
    return (started is not None, -moment(started).timestamp() if started else 0.0, row["name"])


def _in_line(row: Row) -> tuple[float, str]:
    position = row["queue_position"]
    return (float("inf") if position is None else position, moment(row["queued_at"]).isoformat())
