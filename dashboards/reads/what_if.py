"""Data for the quota editor: the effect of a change of a project's share."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from controlplane.models import Project
from controlplane.scheduling.mentions import Sees
from controlplane.simulation.client import SimulationFailed
from dashboards import formats
from jobs.what_if import CannotSimulate, share_what_if, week_what_if

Row = dict[str, Any]
# Limit on the jobs in a list; the others are only counted.
SHOWN = 8


def what_if(project: Project, changes: Mapping[str, Any], sees: Sees, *, is_week: bool = False) -> Row:
    """Return the effect of the new values of `changes` on the project's cluster, or {"problem": a sentence} if it
    cannot be simulated; takes seconds. `sees`: the projects whose jobs may be named, None for all. `is_week`: replay
    last week's submissions.

    "summary": a sentence; "rows": each project's numbers before and after, as texts; "lists": the affected jobs by kind
    of effect; "followed_seconds": the simulated time; "record": the replayed period, None unless `is_week`.
    """
    ask = week_what_if if is_week else share_what_if
    try:
        found = ask(project, changes, sees=sees)
    except CannotSimulate as refusal:
        return {"problem": _(str(refusal))}
    except SimulationFailed:
        return {"problem": _("The change could not be simulated; try again.")}
    titles = {
        "preempted": _("Would have been stopped more often") if is_week else _("Would be stopped and queued again"),
        "spared": _("Would have been stopped less often")
        if is_week
        else _("Would continue, but is stopped without the change"),
        "sooner": _("Starts sooner"),
        "later": _("Waits longer"),
    }  # fmt: skip
    return {
        "followed_seconds": found["followed_seconds"],
        "summary": _summary(found),
        "rows": [_row(one) for one in found["projects"]],
        "record": found["record"],
        "lists": [_list(title, name, found) for name, title in titles.items() if found["counts"][name]],
    }


def _summary(found: Row) -> str:
    counts = found["counts"]
    is_whole = counts["sooner"] == len(found["sooner"])
    # If a list is cut, the number of jobs that start at once is unknown.
    at_once = sum(one["wait_seconds"]["after"] == 0 for one in found["sooner"]) if is_whole else 0
    parts = [
        (at_once, ngettext("{n} job starts at once", "{n} jobs start at once", at_once)),
        (counts["preempted"], ngettext("{n} job is stopped", "{n} jobs are stopped", counts["preempted"])),
        (counts["sooner"] - at_once, ngettext("{n} starts sooner", "{n} start sooner", counts["sooner"] - at_once)),
        (counts["later"], ngettext("{n} waits longer", "{n} wait longer", counts["later"])),
    ]  # fmt: skip
    said = [text.format(n=formats.number(count)) for count, text in parts if count]
    return f"{', '.join(said)}." if said else _("No job would start, stop or wait differently.")


def _row(one: Row) -> Row:
    pairs = [
        [formats.number(one[name][side]) for side in ("before", "after")]
        for name in ("fair_share_gpus", "held_gpus")
    ]
    pairs.append([formats.duration(one["mean_wait_seconds"][side]) for side in ("before", "after")])
    return {
        "project": one["project"],
        "pairs": pairs,
        "is_changed": any(a != b for a, b in pairs),
        "recorded": formats.duration(one["recorded_mean_wait_seconds"]),
    }


def _list(title: str, name: str, found: Row) -> Row:
    jobs = [one | {"waits": _waits(one["wait_seconds"])} for one in found[name][:SHOWN]]
    return {"title": title, "jobs": jobs, "more": found["counts"][name] - len(jobs)}


def _waits(wait: Row) -> str:
    if wait["before"] is None and wait["after"] is None:
        return ""
    sides = [
        _("not within the simulation") if seconds is None else _wait(seconds)
        for seconds in (wait["before"], wait["after"])
    ]
    return " → ".join(sides)


def _wait(seconds: int) -> str:
    return formats.duration(seconds) if seconds else _("at once")
