"""Device cells: which jobs hold each device, and its utilisation. For the overview, the list of nodes and a
node's page."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from controlplane.models import Node
from controlplane.queries.nodes import known_mean
from controlplane.scheduling.mentions import Sees
from dashboards import formats
from dashboards.gpu_use import Use, use_of
from dashboards.heatmap import Block, HeatMap, Part, Square, draw
from jobs.device_shares import device_shares, node_shares, nodes_with_devices

Row = dict[str, Any]
Palette = Mapping[str, int]
# With more devices than this, a heat map shows one square per node.
SQUARES_MOST = 2048


def device_nodes(nodes: QuerySet[Node], sees: Sees, palette: Palette) -> list[Row]:
    """Return nodes in the queryset's order, each with its devices and their `cells` (see `cell`). `sees`: the
    projects whose jobs may be named, None for all; `palette`: the colour index of each project by name. Three
    queries."""
    return [
        {**node, "about": about(node), "cells": [cell(device, palette) for device in node["devices"]]}
        for node in nodes_with_devices(nodes, sees)
    ]


def about(node: Mapping[str, Any]) -> str:
    """Return what is wrong with a node; if nothing is, the model of its first device, "" without devices."""
    first = node["devices"][0] if node["devices"] else None
    return status(node) or (model(first["model"], first["memory_mib"], " · ") if first else "")


def status(node: Mapping[str, Any]) -> str:
    """Return what is wrong with a node, "" if nothing is."""
    if not node["is_reachable"]:
        return _("not reachable")
    return _("not ready") if not node["is_ready"] else _("cordoned") if node["is_cordoned"] else ""


def model(name: str, memory_mib: int, joint: str = " ") -> str:
    """Return a device's model and its memory in GiB, joined by `joint`; leaves out what is unknown."""
    return joint.join(part for part in (name, formats.mebibytes(memory_mib) if memory_mib else "") if part)


def cell(device: Mapping[str, Any], palette: Palette) -> Row:
    """Return the data of a device's cell: one rectangle per share, as wide as its percentage of the device, as
    high as its utilisation. `job`: the id of the job that holds the whole device, None if it is shared, free, or
    held by a job that the reader may not see. `palette`: the colour index of each project by name."""
    x, parts = 0.0, []
    for share in device["shares"]:
        width, used = share["milli_gpus"] / 10, share_use(device, share)
        parts.append(
            {
                "x": formats.rounded(x, 2),
                "width": formats.rounded(width, 2),
                "y": formats.rounded(100 - 100 * used, 1),
                "height": formats.rounded(100 * used, 1),
                "project": share["project"],
                "palette_index": palette.get(share["project"], 0),
                "job": share["job"],
                "title": _holder(share),
            }
        )
        x += width
    is_whole = len(parts) == 1 and device["shares"][0]["milli_gpus"] == 1000
    return {
        "index": device["index"],
        "parts": parts,
        "job": parts[0]["job"] if is_whole else None,
        "is_idle": is_idle(device),
        "is_foreign": device["is_foreign"],
        "title": _title(device),
    }


def is_idle(device: Mapping[str, Any]) -> bool:
    """Return whether a device is held and was last measured at 0."""
    return use_of(device["utilization"], is_held=bool(device["shares"])) is Use.IDLE


def share_use(device: Mapping[str, Any], share: Mapping[str, Any]) -> float:
    """Return the utilisation of one share, 0 to 1: the device's own if it is held as a whole, else the job's
    if known."""
    if share["milli_gpus"] < 1000 and share["utilization"] is not None:
        return float(share["utilization"])
    return float(device["utilization"] or 0)


def holders(devices: Sequence[Mapping[str, Any]]) -> dict[int, list[Row]]:
    """Return the holders of each device of a node, by device index: {"job", "name", "project", "share"}; job
    and name are None for jobs that the reader may not see."""
    return {
        device["index"]: [
            {
                "job": share["job"],
                "name": share["name"],
                "project": share["project"],
                "share": share["milli_gpus"] / 1000,
            }
            for share in device["shares"]
        ]
        for device in devices
    }


def held_together(devices: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return groups of adjacent devices with the same holders: {"label": "0–3" (their indexes), "holders",
    "is_foreign", "use" (mean utilisation, None if unknown)}."""
    runs: list[list[Mapping[str, Any]]] = []
    for device in devices:
        is_next = bool(runs) and _held_by(runs[-1][-1]) == _held_by(device)
        if is_next:
            runs[-1].append(device)
        else:
            runs.append([device])
    held = holders(devices)
    return [
        {
            "label": f"{run[0]['index']}" if len(run) == 1 else f"{run[0]['index']}–{run[-1]['index']}",
            "holders": held[run[0]["index"]],
            "is_foreign": run[0]["is_foreign"],
            "use": known_mean([device["utilization"] for device in run]),
        }
        for run in runs
    ]


def _held_by(device: Mapping[str, Any]) -> tuple[bool, list[tuple[str | None, str, int]]]:
    shares = [(share["job"], share["project"], share["milli_gpus"]) for share in device["shares"]]
    return device["is_foreign"], shares


def heat_map(devices: int) -> HeatMap:
    """Return one drawing of all nodes that have devices: a square per device, or per node if there are more than
    SQUARES_MOST `devices`. At most three queries."""
    if devices > SQUARES_MOST:
        return draw([Block(node["name"], (_node_square(node),)) for node in node_shares()])
    return draw([_block(node) for node in device_shares()])


def _block(node: Mapping[str, Any]) -> Block:
    is_away = not (node["is_ready"] and node["is_reachable"])
    return Block(node["name"], tuple(_device_square(device, is_away) for device in node["devices"]))


def _device_square(device: tuple[Any, ...], is_away: bool) -> Square:
    use, is_foreign, shares = device
    own = use or 0.0
    parts = tuple(
        Part(project, milli / 1000, own if milli == 1000 or job_use is None else job_use)
        for project, milli, job_use in shares
    )
    return Square(parts, bool(parts) and use == 0, is_foreign or is_away)


def _node_square(node: Mapping[str, Any]) -> Square:
    """Return the square of a node: projects side by side, as wide as their share of it and as high as its
    mean utilisation."""
    use, whole = float(node["utilization"] or 0), node["gpus"] * 1000
    parts = tuple(Part(project, milli / whole, use) for project, milli in sorted(node["projects"].items()))
    is_away = not (node["is_ready"] and node["is_reachable"])
    return Square(parts, use_of(node["utilization"], is_held=bool(parts)) is Use.IDLE, is_away)


def _holder(share: Mapping[str, Any]) -> str:
    name = share["name"] or share["project"]
    return name if share["milli_gpus"] == 1000 else f"{name} ({formats.number(share['milli_gpus'] / 1000)})"


def _title(device: Mapping[str, Any]) -> str:
    label = f"GPU {device['index']}"
    if not device["shares"]:
        return f"{label}: {_('used by others') if device['is_foreign'] else _('free')}"
    names = ", ".join(_holder(share) for share in device["shares"])
    return f"{label}: {names}, {formats.percent(device['utilization'])}"
