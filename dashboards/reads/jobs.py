"""Jobs for lists: filters, keyset pages, REST's shape. Three queries a page, however long the history."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from controlplane.access import Actor, visible_jobs, visible_project_names, visible_projects
from controlplane.models import Project
from jobs.kinds.registry import KINDS
from jobs.lifecycle import FINAL_STATES, LOOKS, STATES
from jobs.models import Job
from jobs.queries import job_rows

Row = dict[str, Any]
PAGE = 50
UNFINISHED, FINISHED = "unfinished", "finished"


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a list, newest first; `older` and `newer` are submit ranks for the neighbours, None at the ends."""

    rows: list[Row]
    older: int | None
    newer: int | None


def page(actor: Actor, asked: Mapping[str, str], limit: int = PAGE) -> JobPage:
    """The jobs that the actor sees under filters `project`, `state`, `kind`, `user`, `q`, and `before` or `after`."""
    jobs = _filtered(visible_jobs(actor), asked)
    before, after = _rank(asked.get("before")), _rank(asked.get("after"))
    if after is not None:
        ranks = list(
            jobs.filter(submit_rank__gt=after)
            .order_by("submit_rank")
            .values_list("submit_rank", flat=True)[: limit + 1]
        )
        shown, has_newer, has_older = sorted(ranks[:limit], reverse=True), len(ranks) > limit, True
    else:
        older = jobs if before is None else jobs.filter(submit_rank__lt=before)
        ranks = list(older.order_by("-submit_rank").values_list("submit_rank", flat=True)[: limit + 1])
        shown, has_newer, has_older = ranks[:limit], before is not None, len(ranks) > limit
    found = Job.objects.filter(submit_rank__in=shown).order_by("-submit_rank")
    rows = job_rows(found, visible_project_names(actor)) if shown else []
    return JobPage(
        rows, shown[-1] if shown and has_older else None, shown[0] if shown and has_newer else None
    )


def unfinished_of(actor: Actor, project: Project, limit: int = 100) -> list[Row]:
    """A project's unfinished jobs, newest first."""
    jobs = _unfinished(Job.objects.filter(project=project)).order_by("-submit_rank")[:limit]
    return job_rows(jobs, visible_project_names(actor))


def choices(actor: Actor) -> dict[str, list[tuple[str, str]]]:
    """What the filters offer."""
    names = visible_projects(actor).order_by("name").values_list("name", flat=True)
    states = [
        (UNFINISHED, "Unfinished"),
        (FINISHED, "Finished"),
        *((state, LOOKS[state].label) for state in STATES),
    ]
    return {
        "project": [(name, name) for name in names],
        "state": states,
        "kind": [(kind.name, kind.label) for kind in KINDS.values()],
    }


def attempts(job: Job) -> list[Row]:
    """The starts of a job, first first, with the node of each."""
    rows = job.attempts.order_by("number").values(
        "number", "created_at", "started_at", "ended_at", "outcome", "reason", "message", "exit_code"
    )
    return [{**row} for row in rows]


def find(actor: Actor, text: str, limit: int) -> list[Row]:
    """Jobs whose name begins with or contains a text, newest first."""
    jobs = visible_jobs(actor).filter(name__icontains=text).order_by("-submit_rank")
    return [{**row} for row in jobs.values("id", "name", "project__name", "state")[:limit]]


def _filtered(jobs: QuerySet[Job], asked: Mapping[str, str]) -> QuerySet[Job]:
    state = asked.get("state")
    if state == UNFINISHED:
        jobs = _unfinished(jobs)
    elif state == FINISHED:
        jobs = jobs.filter(state__in=FINAL_STATES)
    elif state in STATES:
        jobs = jobs.filter(state=state)
    exact = {"project": "project__name", "kind": "kind", "user": "user__username"}
    for name, column in exact.items():
        if asked.get(name):
            jobs = jobs.filter(**{column: asked[name]})
    text = asked.get("q", "").strip()
    return jobs.filter(Q(name__icontains=text)) if text else jobs


def _unfinished(jobs: QuerySet[Job]) -> QuerySet[Job]:
    return jobs.exclude(state__in=FINAL_STATES)


def _rank(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 18 else None
