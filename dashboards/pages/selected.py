"""Verbs on several selected jobs: one confirmation, then one transaction per job, and the result of each."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy
from django.views.decorators.http import require_http_methods

from controlplane.access import Actor, Forbidden, NotVisible
from controlplane.actions.errors import Conflict
from controlplane.models import Membership, Role
from dashboards.lists.table import Text
from dashboards.pages.asking import Named, Question, ask
from dashboards.pages.base_page import signed_in
from dashboards.templatetags.ui import count_gpus
from jobs import actions
from jobs.access import visible_jobs
from jobs.lifecycle import FINAL_STATES, LOOKS, STOPPING, SUSPENDED
from jobs.models import Job

# Limit on the jobs of one request; a page of the list has fewer.
MOST = 200


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb on selected jobs. `skips`: states in which it would change nothing. Texts: `asks` and `says` of the
    question, `do` on its button, `done` and `not_done` for the result."""

    carry_out: Callable[..., object]
    skips: tuple[str, ...]
    asks: Text
    says: Text
    do: Text
    done: Text
    not_done: Text


VERBS = {
    "stop": Verb(
        actions.stop_job,
        FINAL_STATES,
        ngettext_lazy("Stop {count} job?", "Stop {count} jobs?"),
        gettext_lazy(
            "Processes get a moment to save, then end. The GPUs that they hold ({gpus}) go to the next in the queue. "
            "Logs and history stay. A stopped job cannot continue; it can be retried from the start."
        ),
        ngettext_lazy("Stop the job", "Stop {count} jobs"),
        ngettext_lazy("{count} job is stopping.", "{count} jobs are stopping."),
        gettext_lazy("Not stopped"),
    ),
    "suspend": Verb(
        actions.suspend_job,
        (*FINAL_STATES, SUSPENDED, STOPPING),
        ngettext_lazy("Suspend {count} job?", "Suspend {count} jobs?"),
        gettext_lazy(
            "The GPUs that they hold ({gpus}) go to the next in the queue. Each keeps its place in the order and "
            "starts again from its last checkpoint when it is resumed."
        ),
        ngettext_lazy("Suspend the job", "Suspend {count} jobs"),
        ngettext_lazy("{count} job is suspended.", "{count} jobs are suspended."),
        gettext_lazy("Not suspended"),
    ),
    "delete": Verb(
        actions.delete_job,
        (),
        ngettext_lazy("Delete {count} job?", "Delete {count} jobs?"),
        gettext_lazy(
            "Attempts, metrics and logs are removed. What still runs is stopped first (it holds {gpus}). This cannot "
            "be undone."
        ),
        ngettext_lazy("Delete the job", "Delete {count} jobs"),
        ngettext_lazy("{count} job is deleted.", "{count} jobs are deleted."),
        gettext_lazy("Not deleted"),
    ),
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected jobs that the verb would change (`jobs`), those that it skips, each with the reason (`left`), and the
    number of jobs that no longer exist or are not visible (`missing`)."""

    jobs: list[Job]
    left: list[tuple[Job, str]]
    missing: int


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def jobs_selected(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Ask before a verb changes several jobs (GET `?verb=stop&row=<id>&row=<id>`), or apply it (POST). Raises
    BadRequest for an unknown verb."""
    sent = request.POST if request.method == "POST" else request.GET
    verb, ids = VERBS.get(sent.get("verb", "")), _ids(sent.getlist("row"))
    if verb is None:
        raise BadRequest(_("Choose an action: stop, suspend or delete."))
    back = _back(sent.get("back", ""))
    selection = select(actor, verb, ids)
    if request.method == "POST":
        return _carry_out(request, actor, verb, selection, back)
    return ask(request, actor, _question(sent["verb"], verb, selection, back))


def select(actor: Actor, verb: Verb, ids: Sequence[uuid.UUID]) -> Selection:
    """Return the jobs with these ids that the verb changes, those that it skips with the reason, and the number
    of those that the actor cannot see."""
    jobs = list(
        visible_jobs(actor).filter(pk__in=ids).select_related("project", "user").order_by("submit_rank")
    )
    roles = _roles(actor)
    reasons = {
        job.pk: _why_not(job, verb, Role.OWNER if roles is None else roles.get(job.project_id))
        for job in jobs
    }
    return Selection(
        [job for job in jobs if not reasons[job.pk]],
        [(job, reasons[job.pk]) for job in jobs if reasons[job.pk]],
        len(ids) - len(jobs),
    )


def _why_not(job: Job, verb: Verb, role: str | None) -> str:
    if not Role.is_at_least(role, Role.MEMBER):
        return _("You can only view {project}.").format(project=job.project.name)
    if job.state in verb.skips:
        return _("It is {state} already.").format(state=_(LOOKS[job.state].label).lower())
    return ""


def _roles(actor: Actor) -> dict[int, str] | None:
    """Return the actor's roles by project id; None for an admin, who owns all projects."""
    if actor.is_admin:
        return None
    return dict(Membership.objects.filter(user=actor.user).values_list("project_id", "role"))


def _question(name: str, verb: Verb, selection: Selection, back: str) -> Question:
    count, held = len(selection.jobs), sum(job.allocated_milli for job in selection.jobs)
    sentences = [str(verb.says).format(gpus=count_gpus(held / 1000))] if count else [_nothing(selection)]
    sentences += _missing(selection)
    fields = [("verb", name), ("back", back), *(("row", str(job.pk)) for job in selection.jobs)]
    groups = [
        (_("These jobs"), [_named(job, _(LOOKS[job.state].label).lower()) for job in selection.jobs]),
        (_("These stay as they are"), [_named(job, why) for job, why in selection.left]),
    ]
    return Question(
        title=_counted(verb.asks, count) if count else _("Nothing to do"),
        sentences=sentences,
        back=back,
        do=_counted(verb.do, count) if count else "",
        is_destructive=name != "suspend",
        fields=fields,
        groups=[(title, named) for title, named in groups if named],
    )


def _nothing(selection: Selection) -> str:
    if selection.left or selection.missing:
        return _("None of the selected jobs can be changed this way.")
    return _("No job is selected. Select jobs in the list first.")


def _missing(selection: Selection) -> list[str]:
    if not selection.missing:
        return []
    text = ngettext(
        "{count} selected job no longer exists.", "{count} selected jobs no longer exist.", selection.missing
    )
    return [text.format(count=selection.missing)]


def _carry_out(
    request: HttpRequest, actor: Actor, verb: Verb, selection: Selection, back: str
) -> HttpResponseBase:
    done, failed = [], [(job, why) for job, why in selection.left]
    for job in selection.jobs:
        try:
            verb.carry_out(job, actor=actor)
            done.append(job)
        except Conflict as conflict:
            failed.append((job, conflict.detail))
        except (NotVisible, Forbidden) as refusal:
            failed.append((job, str(refusal)))
    said = _counted(verb.done, len(done))
    if not failed and not selection.missing:
        messages.success(request, said)
        return redirect(back)
    named = [_named(job, why) for job, why in failed]
    return ask(
        request,
        actor,
        Question(
            title=said,
            sentences=_missing(selection),
            back=back,
            groups=[(str(verb.not_done), named)] if named else [],
        ),
    )


def _named(job: Job, note: str) -> Named:
    return Named(f"{job.project.name}/{job.name}", reverse("job", args=[job.pk]), note)


def _counted(text: Text, count: int) -> str:
    return str(text % count).format(count=count)


def _ids(texts: Sequence[str]) -> list[uuid.UUID]:
    if len(texts) > MOST:
        raise BadRequest(_("Select at most {count} jobs at once.").format(count=MOST))
    try:
        return list(dict.fromkeys(uuid.UUID(text) for text in texts))
    except ValueError as error:
        raise BadRequest(_("The id of a selected job is not valid.")) from error


def _back(asked: str) -> str:
    """Return the URL `asked` if it is that of the job list, with any filters; for any other, the plain list's."""
    # The page redirects there: an address from the query could lead to another site.
    place = reverse("jobs")
    return asked if asked == place or asked.startswith(f"{place}?") else place
