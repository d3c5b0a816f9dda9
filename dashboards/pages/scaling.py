"""Resize an elastic job from its page: GET shows the plan, POST carries it out."""

from django.http import HttpRequest, HttpResponseBase, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from controlplane.access import Actor
from controlplane.actions.errors import Conflict, Invalid
from controlplane.models import Role
from controlplane.notation import parse_duration, write_duration
from dashboards.pages.asking import Named, Question, ask
from dashboards.pages.base_page import attempt, signed_in
from jobs.access import job_for
from jobs.kinds.membership import ScalePlan
from jobs.models import Job
from jobs.scaling import TIMEOUT_SECONDS, Scaling, plan_scaling, scale_job

MOST_WORKERS, LONGEST_SECONDS = 10_000, 7 * 86_400


@signed_in
def job_scale(request: HttpRequest, actor: Actor, job_id: str) -> HttpResponseBase:
    """GET: show which workers a resize would start or stop. POST: start it."""
    job = job_for(actor, job_id, needed=Role.MEMBER)
    back = reverse("job-tab", args=[job_id, "workers"])
    try:
        asked = _asked(request.POST if request.method == "POST" else request.GET)
        if request.method != "POST":
            return ask(request, actor, _question(job, asked, plan_scaling(job, asked), back))
    except (Conflict, Invalid) as refused:
        return ask(request, actor, Question(_("The number of workers stays"), [str(refused)], back))
    except ValueError:
        sentence = _("Give a number of workers, and a time such as 10m.")
        return ask(request, actor, Question(_("The number of workers stays"), [sentence], back))
    attempt(request, lambda: _begin(job, asked, actor), _("The change has begun."))
    return redirect(back)


def _begin(job: Job, asked: Scaling, actor: Actor) -> None:
    try:
        scale_job(job, asked.workers, actor=actor, timeout_seconds=asked.timeout_seconds)
    except Invalid as invalid:
        raise Conflict("scale_refused", str(invalid)) from invalid


def _asked(fields: QueryDict) -> Scaling:
    """Return the requested size from the form. Raises ValueError for a malformed number or duration."""
    workers, timeout = int(fields.get("workers", "")), fields.get("timeout", "")
    seconds = parse_duration(timeout) if timeout else TIMEOUT_SECONDS
    if not (1 <= workers <= MOST_WORKERS and 1 <= seconds <= LONGEST_SECONDS):
        raise ValueError
    return Scaling(workers, seconds)


def _question(job: Job, asked: Scaling, plan: ScalePlan, back: str) -> Question:
    before, after = plan.from_workers, plan.to_workers
    more = after - before
    if more > 0:
        what = ngettext(
            "%(count)s worker starts and warms up while training goes on; it joins at a step.",
            "%(count)s workers start and warm up while training goes on; they join together at a step.",
            more,
        ) % {"count": more}
    else:
        what = _("A leaving worker finishes its step and reports that before it ends. No step is lost.")
    late = _("A change that is not complete after %(time)s is rolled back.") % {
        "time": write_duration(asked.timeout_seconds)
    }
    leaving = [Named(_("Worker %(rank)s") % {"rank": rank}, note=why) for rank, why in plan.leaving]
    return Question(
        _("From %(before)s to %(after)s workers?") % {"before": before, "after": after},
        [what, late],
        back,
        do=_("Change"),
        is_destructive=False,
        fields=(("workers", str(asked.workers)), ("timeout", write_duration(asked.timeout_seconds))),
        groups=((_("Leaving"), leaving),) if leaving else (),
    )
