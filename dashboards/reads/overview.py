"""Data for the overview page. The database computes all sums; all lists are bounded."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _

from controlplane.access import Actor
from controlplane.live.snapshot_read import one_moment
from controlplane.models import Event, Node, Role
from controlplane.scheduling.mentions import Sees
from dashboards import formats
from dashboards.reads.devices import device_nodes, heat_map, model
from dashboards.reads.projects import bar, roles_of
from jobs import overview as queries
from jobs.overview import DeviceSums, JobGroup, NodeCounts

Row = dict[str, Any]
# Rows of running jobs and of queued jobs: the page stays as long and as fast at any size of the cluster (decision
# 0023).
ROWS = 20
# Rows of projects: as many as there are colours.
PROJECTS = 12
# Rows of the latest submitted jobs, if the queue is longer than its rows, so that a new job appears at once.
NEWEST = 5
# Up to this many nodes and devices are shown as cells that link to jobs, more as a heat map: with a link for each of
# 10,000 GPUs the page had 4.7 MB (decision 0023).
CELL_NODES, CELL_DEVICES = 16, 192
# With this many nodes, cells are small.
MANY_NODES = 8


@dataclass(frozen=True, slots=True)
class Facts:
    """The numbers behind the overview's seven figures, for a reader of `sees`. `models`: the most frequent (model,
    memory in MiB) of devices. `over_quota`: GPUs that projects hold beyond their quotas. `idle`: names of some jobs
    that hold unused GPUs."""

    devices: DeviceSums
    nodes: NodeCounts
    jobs: Sequence[JobGroup]
    sees: Sees
    models: Sequence[tuple[str, int]] = ()
    # GPUs that projects hold above their quotas.
    over_quota: float = 0
    # Names of jobs that hold idle devices, at most three.
    idle: Sequence[str] = ()

    def count(self, *, is_queued: bool) -> int:
        """Return the number of queued jobs, or of running ones, that the reader may see."""
        return sum(job.count for job in self.jobs if job.is_queued == is_queued and job.is_in(self.sees))

    def hides(self, *, is_queued: bool) -> bool:
        """Return whether there are queued jobs, or running ones, that the reader may not see."""
        return any(job.is_queued == is_queued and not job.is_in(self.sees) for job in self.jobs)


def overview_page(sees: Sees) -> Row:
    """Return the template context of the page, read in one database snapshot. `sees`: the projects whose jobs the
    reader may see, None for all."""
    with one_moment():
        # Read together with the rows: live updates continue after this event number.
        seq = Event.objects.last_seq()
        shares = queries.project_shares()
        facts = read_facts(sees, shares)
        context = {"seq": seq, **_lists(facts), **_devices(facts, shares), **_projects(shares, sees)}
        context["latest"] = _latest(seq, facts, shares)
    return context | {
        "usable": next(iter(shares), None) if sees is None else None,
        "figures": figures(facts),
        "in_use": facts.devices.held_milli / 1000,
        "empty": empty_words(facts),
    }


def read_facts(sees: Sees, shares: Mapping[str, Row]) -> Facts:
    """Return the numbers behind the figures for a reader of the projects `sees` (None: all), in six queries.
    `shares`: the projects as `jobs.overview.project_shares` returns them."""
    devices = queries.device_sums()
    return Facts(
        devices=devices,
        nodes=queries.node_counts(),
        jobs=queries.job_groups(),
        sees=sees,
        models=queries.device_models(2),
        over_quota=sum(max(0, row["allocated_gpus"] - row["gpu_quota"]) for row in shares.values()),
        idle=queries.idle_jobs(sees, 3) if devices.idle_milli else (),
    )


def figures(facts: Facts) -> list[Row]:
    """Return the seven figures of the overview, each with its "key", "name", "value" (text), "under" (the sentence
    below it) and "url"; some also with "unit" (text behind the value), "is_warning", or "since" (when the oldest queued
    job was queued; None if there is none or the reader may not see all)."""
    total = queries.totals(facts.devices, facts.nodes, facts.jobs)
    held, use = total["gpus_allocated"], total["gpu_utilization"]
    share = formats.percent(held / total["gpus"]) if total["gpus"] else ""
    idle = total["gpus_idle_allocated"]
    jobs, nodes = reverse("jobs"), reverse("nodes")
    under = sentences(facts)
    rows: list[Row] = [
        {"key": "nodes", "name": _("Nodes"), "url": nodes},
        {"key": "gpus", "name": _("GPUs"), "url": nodes},
        {"key": "gpus_allocated", "name": _("Allocated"), "url": reverse("projects"), "unit": share},
        {"key": "gpus_idle_allocated", "name": _("Idle but allocated"), "url": nodes, "is_warning": idle > 0},
        {"key": "gpu_utilization", "name": _("GPU utilisation"), "url": reverse("analytics")},
        {"key": "jobs_running", "name": _("Running"), "url": f"{jobs}?state=active"},
        {"key": "jobs_queued", "name": _("Queued"), "url": f"{jobs}?state=queued", "since": _oldest(facts)},
    ]
    for row in rows:
        row |= {"value": formats.number(total[row["key"]]), "under": under[row["key"]]}
    bare = formats.percent(use).removesuffix(f"{formats.NBSP}%")
    rows[4] |= {"value": bare, "unit": "" if use is None else "%"}
    return rows


def usable_project(actor: Actor) -> str | None:
    """Return the first project, by name, in which the actor may submit jobs, for the hint on an empty page. None
    if there is none, and for an admin, who may use any project."""
    roles = {} if actor.is_admin else roles_of(actor)
    return min((name for name, role in roles.items() if role != Role.VIEWER), default=None)


def sentences(facts: Facts) -> dict[str, str]:
    """Return the text under each figure of the overview, by the figure's "key"."""
    devices = facts.devices
    return {
        "nodes": _node_states(facts.nodes) or _("all ready"),
        "gpus": ", ".join(model(*found) for found in facts.models) or formats.NOTHING,
        "gpus_allocated": _("{gpus} over quota").format(gpus=formats.number(facts.over_quota))
        if facts.over_quota
        else _("all within quota"),
        "gpus_idle_allocated": _idle(facts),
        "gpu_utilization": _busy(devices),
        "jobs_running": _running(facts),
        "jobs_queued": _yours(facts, is_queued=True) if facts.hides(is_queued=True) else _("none queued"),
    }


def empty_words(facts: Facts) -> dict[str, str]:
    """Return the texts to show in place of an empty list of jobs: "running" and "queued"."""
    return {
        "running": _("No job of your projects is running.")
        if facts.hides(is_queued=False)
        else _("No job is running."),
        "queued": _("No job of your projects is queued.")
        if facts.hides(is_queued=True)
        else _("The queue is empty."),
    }


def shown_projects(rows: Sequence[Row], most: int) -> list[Row]:
    """Return at most `most` projects, sorted by name: those that hold the most GPUs first, then those with
    the largest fair share and quota."""
    ranked = sorted(
        rows,
        key=lambda row: (-row["allocated_gpus"], -row["fair_share_gpus"], -row["gpu_quota"], row["name"]),
    )
    return sorted(ranked[:most], key=lambda row: str(row["name"]))


def _lists(facts: Facts) -> Row:
    running, queued = facts.count(is_queued=False), facts.count(is_queued=True)
    first, newest = _queue(facts.sees, queued)
    return {
        "running": queries.running_rows(facts.sees, ROWS) if running else [],
        "running_count": running,
        "has_more_running": running > ROWS,
        "queued": first,
        "newest": newest,
        "between": queued - len(first) - len(newest),
        "queued_count": queued,
        "has_more_queued": queued > ROWS,
    }


def _queue(sees: Sees, count: int) -> tuple[list[Row], list[Row]]:
    """Return the first queued jobs of the projects `sees` (None: all) and, for a queue of more than are shown
    (`count`: its length), the latest submitted ones, in order of submission."""
    if count <= ROWS:
        return queries.queued_rows(sees, ROWS) if count else [], []
    first = queries.queued_rows(sees, ROWS - NEWEST)
    known = {row["id"] for row in first}
    newest = queries.queued_rows(sees, NEWEST, newest_first=True)[::-1]
    # If the queue became shorter between the two queries, their results may overlap.
    return first, [row for row in newest if row["id"] not in known]


def _devices(facts: Facts, shares: Mapping[str, Row]) -> Row:
    palette = {name: row["palette_index"] for name, row in shares.items()}
    shown: Row = {"palette": palette, "has_nodes": facts.nodes.nodes > 0, "node_count": facts.nodes.nodes}
    if facts.nodes.nodes > CELL_NODES or facts.devices.gpus > CELL_DEVICES:
        return shown | {"heat": heat_map(facts.devices.gpus)}
    density = "nodes-many" if facts.nodes.nodes > MANY_NODES else ""
    return shown | {
        "density": density,
        "nodes": device_nodes(Node.objects.order_by("name"), facts.sees, palette),
    }


def _projects(shares: Mapping[str, Row], sees: Sees) -> Row:
    rows = shown_projects(list(shares.values()), PROJECTS)
    widest = (max(row["gpu_quota"], row["allocated_gpus"], row["fair_share_gpus"]) for row in rows)
    full = max(widest, default=0) or 1
    return {
        "projects": [
            row | {"is_visible": sees is None or row["name"] in sees, "bar": bar(row["gpu_quota"], row, full)}
            for row in rows
        ],
        "project_count": len(shares),
        "has_more_projects": len(shares) > len(rows),
    }


def _latest(seq: int, facts: Facts, shares: Mapping[str, Row]) -> Row:
    """Return the newest point of live charts: its time `at`, that of event `seq`, and the values of `facts` and
    `shares` as JSON by the key of their line."""
    total = queries.totals(facts.devices, facts.nodes, facts.jobs)
    names = ("gpu_utilization", "gpu_memory_utilization")
    held = {f"project:{name}": row["allocated_gpus"] for name, row in shares.items()}
    at: datetime | None = Event.objects.filter(seq=seq).values_list("at", flat=True).first()
    return {"at": at, "json": json.dumps({name: total[name] for name in names} | held)}


def _node_states(nodes: NodeCounts) -> str:
    counts = ((_("{count} not ready"), nodes.nodes - nodes.ready), (_("{count} cordoned"), nodes.cordoned))
    return ", ".join(text.format(count=formats.number(count)) for text, count in counts if count)


def _idle(facts: Facts) -> str:
    if facts.idle:
        return ", ".join(facts.idle[:2]) + ("…" if len(facts.idle) > 2 else "")
    return _("none in your projects") if facts.devices.idle_milli else _("none")


def _busy(devices: DeviceSums) -> str:
    if devices.busy:
        return _("{share} of busy devices").format(share=formats.percent(devices.use / devices.busy))
    return _("nothing measures it") if devices.gpus and not devices.measured else _("no device is busy")


def _running(facts: Facts) -> str:
    if facts.hides(is_queued=False):
        return _yours(facts, is_queued=False)
    kinds = Counter[str]()
    for job in facts.jobs:
        if not job.is_queued:
            kinds[job.kind] += job.count
    ranked = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{formats.number(count)} {kind}" for kind, count in ranked) or _("nothing runs")


def _yours(facts: Facts, *, is_queued: bool) -> str:
    count = facts.count(is_queued=is_queued)
    text = _("{count} in your projects").format(count=formats.number(count))
    return text if count else _("none in your projects")


def _oldest(facts: Facts) -> datetime | None:
    """Return when the oldest queued job was queued; None if there is none or the reader may not see all queued
    jobs."""
    if facts.hides(is_queued=True):
        return None
    return min((job.oldest for job in facts.jobs if job.is_queued), default=None)
