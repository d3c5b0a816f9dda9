"""Data for the log viewer besides lines: attempts with logs, their lengths, and the events during each."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from controlplane.access import Actor
from controlplane.logstore.reader import line_before, log_path, tail
from dashboards.reads.job import events
from jobs.lifecycle import FAILED, TIMED_OUT
from jobs.models import Job

ATTEMPTS_MOST = 30
EVENTS_MOST = 200

Row = dict[str, Any]


def log_index(actor: Actor, job: Job, rank: int) -> Row:
    """Return {"latest", "attempts": [{"number", "lines", "size", "notes"}]} for the newest attempts, oldest
    first.

    `lines` and `size`: current length of the log of `rank`, in lines and bytes. A note is {"id", "kind",
    "after", "time", "message"}; `after` is the line that it follows. A job that has not started has one
    attempt, the coming one.
    """
    rows = job.attempts.order_by("-number").values_list("number", "created_at")[:ATTEMPTS_MOST]
    begun = dict(reversed(rows)) or {1: job.created_at}
    notes = _by_attempt(_notes(events(actor, job, EVENTS_MOST)[::-1]), begun)
    return {
        "latest": job.attempt,
        "attempts": [_attempt(job, number, rank, notes[number]) for number in begun],
    }


def _attempt(job: Job, number: int, rank: int, notes: Sequence[Row]) -> Row:
    path = log_path(settings.LOG_DIR, str(job.pk), number, rank)
    last = tail(path, 1)
    placed = [note | {"after": line_before(path, int(note["time"].timestamp() * 1000))} for note in notes]
    return {
        "number": number,
        "lines": last.lines[-1].n if last.lines else 0,
        "size": last.next_offset,
        "notes": placed,
    }


def _by_attempt(notes: Sequence[Row], begun: Mapping[int, datetime]) -> Mapping[int, list[Row]]:
    """Return notes by attempt: the one that they name, or the newest that had begun at their time; earlier notes
    belong to the first. `begun`: start times by attempt. The event of a start may be slightly earlier than its
    attempt's start time."""
    found: dict[int, list[Row]] = defaultdict(list)
    for note in notes:
        earlier = [number for number, at in begun.items() if at <= note["time"]]
        own = note.pop("attempt")
        found[own if own in begun else earlier[-1] if earlier else next(iter(begun))].append(note)
    return found


def _notes(rows: Sequence[Row]) -> list[Row]:
    """Return the job's events (oldest first) that are shown between log lines; a repeated reason is shown
    once."""
    found: list[Row] = []
    why = ""
    for event in rows:
        message = _sentence(event, is_known=event["message"] == why)
        if message:
            kind = event["kind"].partition(".")[2]
            looks = "is-bad" if kind in (FAILED, TIMED_OUT) else kind
            note = {"id": f"event {event['seq']}", "kind": looks, "time": event["at"], "message": message}
            found.append(note | {"attempt": event["data"].get("attempt")})
            why = event["message"]
    return found


def _sentence(event: Row, *, is_known: bool) -> str:
    """Return an event as a sentence, "" if it is not shown between log lines. `is_known`: the previous event
    had the same reason."""
    kind, message, data = event["kind"], event["message"], event["data"]
    if kind == "job.starting":
        return _starting(message, data)
    if kind == "job.running":
        return _("Running.")
    if kind == "job.scaled":
        sizes = {"before": data.get("from"), "after": data.get("to"), "actor": event["actor"]}
        return _("Resized from {before} to {after} workers by {actor}.").format(**sizes)
    if kind == "job.stopping":
        return _with_cause(message, data)
    if kind == "job.queued":
        return _("Its pods are gone; it is queued again.") + ("" if is_known else f" {message}")
    if kind == "pod.failed":
        return _("Rank {rank} failed: {why}").format(rank=data.get("rank"), why=message)
    return message if kind.startswith("job.") and not is_known else ""


def _starting(message: str, data: Mapping[str, Any]) -> str:
    if not data.get("nodes"):
        return _("Starting. {why}").format(why=message)
    return _("Scheduled on {nodes}. {why}").format(nodes=", ".join(data["nodes"]), why=message)


def _with_cause(message: str, data: Mapping[str, Any]) -> str:
    causes = {"reclaim": _("Reclaimed."), "preempt": _("Preempted."), "ageing": _("Preempted.")}
    cause = causes.get(data.get("cause", ""))
    return f"{cause} {message}" if cause else message
