"""Pages of jobs: the list, one job with its tabs, and its verbs."""

from collections.abc import Callable
from typing import Any

import orjson
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane.access import (
    Actor,
    Forbidden,
    NotVisible,
    role_in,
    visible_project_names,
)
from controlplane.actions.errors import Conflict, Invalid
from controlplane.models import Role
from dashboards.command_line import yard_submit
from dashboards.lists.jobs import JOBS
from dashboards.lists.table import list_page
from dashboards.pages.base_page import attempt, show, signed_in
from dashboards.reads import job as job_reads
from dashboards.reads import job_story as story
from dashboards.reads import workers as worker_reads
from dashboards.reads.links import link_grid
from dashboards.reads.log_index import ATTEMPTS_MOST, log_index
from dashboards.reads.submit import projects_to_submit_to
from datasets.access import visible_datasets
from datasets.pages.artifacts import artifacts_of_job
from datasets.pages.volume_lists import snapshots_of_job
from datasets.queries.datasets import mounted_datasets
from datasets.queries.volumes import mounted_by
from jobs import actions
from jobs.access import job_for, visible_jobs
from jobs.kinds.registry import KINDS
from jobs.kinds.spec import to_edge
from jobs.lifecycle import FAILED, TIMED_OUT
from jobs.log_ranks import default_log_rank
from jobs.models import Job
from jobs.queries import job_detail

TABS = ("overview", "workers", "logs", "metrics", "events", "pods", "spec", "terminal")


@signed_in
def job_list(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the job list, newest first unless the URL sorts it otherwise."""
    usable = next(iter(projects_to_submit_to(actor)), None)
    page = list_page(JOBS, actor, visible_jobs(actor), request.GET.dict(), can_select=usable is not None)
    context = {"page": page, "usable": usable, "verbs_url": reverse("jobs-selected")}
    return show(request, actor, "dashboards/jobs.html", context)


@signed_in
def job_page(request: HttpRequest, actor: Actor, job_id: str, tab: str = "overview") -> HttpResponseBase:
    """Show one tab of a job's page: state, reason, pods and nodes, metrics or log. Raises NotVisible for a tab that
    it does not have, Forbidden for a viewer who opens the terminal."""
    job = job_for(actor, job_id)
    hidden = set() if KINDS[job.kind].is_elastic else {"workers"}
    if tab not in TABS or tab in hidden:
        raise NotVisible(f"There is no tab {tab!r}.")
    is_member = Role.is_at_least(role_in(actor, job.project), Role.MEMBER)
    if not is_member:
        hidden.add("terminal")
    if tab == "terminal" and not is_member:
        raise Forbidden("Only members of its project can open a terminal in a job.")
    detail = job_detail(job, visible_project_names(actor))
    context: dict[str, Any] = {
        "job": detail,
        "tab": tab,
        "tabs": [name for name in TABS if name not in hidden],
        "palette_index": job.project.palette_index,
        "is_member": is_member,
        "is_final": job.is_final,
        "cluster": job.project.cluster.name,
    }
    if is_member and not job.is_final:
        context["cost"] = story.stop_cost(actor, job, detail)
    return show(request, actor, f"dashboards/job_{tab}.html", context | _TAB_READS[tab](actor, job, detail))


@signed_in
def job_outlook(request: HttpRequest, actor: Actor, job_id: str) -> HttpResponseBase:
    """Show, as a part of a queued job's page, when it is expected to start and which changes would start it."""
    found = job_reads.job_outlook(actor, job_for(actor, job_id))
    return render(request, "dashboards/parts/outlook.html", {"outlook": found})


@signed_in
def job_log(request: HttpRequest, actor: Actor, job_id: str) -> HttpResponseBase:
    """Stream the log of one rank as a text file: of one attempt (default: the newest), or of all."""
    job = job_for(actor, job_id)
    rank = job_reads.whole(request.GET.get("rank"), 0)
    if request.GET.get("attempt") == "all":
        part, lines = "all", job_reads.whole_log_text(job, rank)
    else:
        number = job_reads.whole(request.GET.get("attempt"), job.attempt)
        part, lines = str(number), job_reads.log_text(job, number, rank)
    headers = {"Content-Disposition": f'attachment; filename="{job.name}-{part}-{rank}.log"'}
    return StreamingHttpResponse(lines, content_type="text/plain; charset=utf-8", headers=headers)


@signed_in
def job_log_index(request: HttpRequest, actor: Actor, job_id: str) -> HttpResponseBase:
    """Return the log index (attempts, log lengths, events between lines) as JSON for static/js/logsource.js."""
    index = log_index(actor, job_for(actor, job_id), job_reads.whole(request.GET.get("rank"), 0))
    return HttpResponse(
        orjson.dumps(index), content_type="application/json", headers={"Cache-Control": "no-store"}
    )


@require_POST
@signed_in
def job_verb(request: HttpRequest, actor: Actor, job_id: str, verb: str) -> HttpResponseBase:
    """Stop, suspend, resume, delete or retry a job, as `verb` says; for members of its project."""
    job = job_for(actor, job_id, needed=Role.MEMBER)
    if verb == "retry":
        return _retry(request, actor, job)
    carry_out, done = _VERBS[verb]
    if attempt(request, lambda: carry_out(job, actor=actor), done()) and verb == "delete":
        return redirect("jobs")
    return redirect("job", job_id)


def _retry(request: HttpRequest, actor: Actor, job: Job) -> HttpResponseBase:
    made: list[Job] = []

    def again() -> None:
        try:
            made.append(actions.submit_job(job.project, actions.clone_body(job, job.name), actor=actor))
        except Invalid as invalid:
            raise Conflict("spec_impossible", str(invalid)) from invalid

    done = _("Submitted again under the same name.")
    return redirect("job", made[0].pk) if attempt(request, again, done) and made else redirect("job", job.pk)


_VERBS: dict[str, tuple[Callable[..., object], Callable[[], str]]] = {
    "stop": (actions.stop_job, lambda: _("Stopping. Its GPUs are free as soon as its pods are gone.")),
    "suspend": (
        actions.suspend_job,
        lambda: _("It saves a checkpoint, releases its GPUs and waits until you resume it."),
    ),
    "resume": (actions.resume_job, lambda: _("Queued again, at its original place.")),
    "delete": (actions.delete_job, lambda: _("Deleted.")),
}


def _overview(actor: Actor, job: Job, detail: dict[str, Any]) -> dict[str, Any]:
    reached = story.reached_by_attempt(job)
    return {
        "figures": job_reads.figures(detail, reached),
        "explain": job_reads.explain(actor, job),
        "steps": story.start_steps(job),
        "attempts": story.attempts(job, reached),
        "curves": job_reads.curves(job, detail, reached),
        "went_wrong": job.state in (FAILED, TIMED_OUT),
        "mounts": mounted_by(job.pk),
        "datasets": mounted_datasets(job.pk, visible_datasets(actor)),
        "snapshots": snapshots_of_job(job),
        "artifacts": artifacts_of_job(job),
    } | _logs(actor, job, detail)


def _metrics(actor: Actor, job: Job, detail: dict[str, Any]) -> dict[str, Any]:
    reached = story.reached_by_attempt(job)
    return {"curves": job_reads.curves(job, detail, reached, is_whole=True), "links": link_grid(job)}


def _ranks(job: Job) -> dict[str, Any]:
    """Return, as template context, the ranks whose logs can be selected, and the one that is shown first."""
    return {"log_ranks": job_reads.log_ranks(job), "log_rank": default_log_rank(job, job.attempt)}


def _logs(actor: Actor, job: Job, detail: dict[str, Any]) -> dict[str, Any]:
    return {
        **_ranks(job),
        "log_attempts": range(max(1, job.attempt), max(0, job.attempt - ATTEMPTS_MOST), -1),
    }


def _spec(actor: Actor, job: Job, detail: dict[str, Any]) -> dict[str, Any]:
    spec = {name: value for name, value in to_edge(job.spec).items() if value not in (None, [], {})}
    return {"spec": spec, "command": yard_submit(job.project.name, spec)}


def _workers(actor: Actor, job: Job, detail: dict[str, Any]) -> dict[str, Any]:
    titles = {"samples_per_second": _("Samples per second"), "loss": _("Loss")}
    curves = [
        {"name": name, "title": title, "axis": "step", "width": "col-6", "is_there": bool(job.progress)}
        for name, title in titles.items()
    ]
    return {"workers": worker_reads.workers(job), "curves": curves}


_TAB_READS: dict[str, Callable[[Actor, Job, dict[str, Any]], dict[str, Any]]] = {
    "overview": _overview,
    "workers": _workers,
    "logs": _logs,
    "metrics": _metrics,
    "events": lambda actor, job, detail: {"events": job_reads.events(actor, job, 500)},
    "pods": lambda actor, job, detail: {"pods": job_reads.pods(job)},
    "spec": _spec,
    "terminal": lambda actor, job, detail: _ranks(job),
}
