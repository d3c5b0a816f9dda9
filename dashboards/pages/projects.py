"""Pages of projects: list, one project with allocation, members and jobs; create, edit, delete."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase, JsonResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.access import Actor, project_for, require_admin, role_in, visible_project_names
from controlplane.actions.directory import find_user, user_names_starting_with
from controlplane.actions.errors import Conflict, Invalid
from controlplane.actions.projects import (
    OWNER_FIELDS,
    create_project,
    delete_project,
    edit_project,
    oversold_warning,
    remove_member,
    set_member,
    taken_along,
)
from controlplane.http.throttle import TooManyAttempts
from controlplane.models import Cluster, Project, Role, User
from dashboards.lists.jobs import BESIDE, JOBS, unfinished_of
from dashboards.lists.projects import PROJECTS
from dashboards.lists.table import list_page, table
from dashboards.pages.asking import ask
from dashboards.pages.base_page import attempt, show, show_form, signed_in
from dashboards.pages.fields import DurationField, GpuField, NameField
from dashboards.pages.questions import about_removal
from dashboards.reads import projects as reads
from dashboards.reads.what_if import what_if
from jobs.kinds.registry import POOL_KINDS


class ProjectForm(forms.Form):
    """Form of a project; owners of a project get only the fields that they may change."""

    name = NameField(longest=50, label=gettext_lazy("Name"))
    cluster = forms.ModelChoiceField(
        Cluster.objects.filter(detached_at=None, state=Cluster.ATTACHED),
        label=gettext_lazy("Cluster"),
        empty_label=None,
    )
    gpu_quota_milli = GpuField(label=gettext_lazy("GPU quota"), help_text=gettext_lazy("Guaranteed GPUs."))
    over_quota_weight_milli = GpuField(
        label=gettext_lazy("Over-quota weight"),
        required=False,
        help_text=gettext_lazy("Share of what others leave idle. Empty: same as the quota. 0: never."),
    )
    gpu_limit_milli = GpuField(
        label=gettext_lazy("GPU limit"),
        required=False,
        help_text=gettext_lazy("Never more than this. Empty: no limit."),
    )
    priority = forms.IntegerField(
        label=gettext_lazy("Priority"),
        min_value=0,
        max_value=1000,
        initial=0,
        help_text=gettext_lazy("Higher is served first."),
    )
    description = forms.CharField(label=gettext_lazy("Description"), max_length=500, required=False)
    interactive_max_seconds = DurationField(
        label=gettext_lazy("Interactive time limit"),
        required=False,
        help_text=gettext_lazy("Such as 8h. Empty: none."),
    )
    interactive_idle_seconds = DurationField(
        label=gettext_lazy("Interactive idle limit"),
        required=False,
        help_text=gettext_lazy("Stops a session whose GPU did nothing for this long."),
    )

    def __init__(
        self, *args: Any, project: Project | None = None, is_owner_only: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        pools = [(name, name) for name in reads.pool_names()]
        self.fields |= {f"{kind.name}_pools": _pools_field(kind.pools_label, pools) for kind in POOL_KINDS}
        if project is not None:
            del self.fields["name"], self.fields["cluster"]
        if is_owner_only:
            for name in set(self.fields) - OWNER_FIELDS:
                del self.fields[name]

    @property
    def pools(self) -> list[forms.BoundField]:
        """Return the fields of node pools that the form has, one for each kind of job that uses them."""
        return [self[name] for name in (f"{kind.name}_pools" for kind in POOL_KINDS) if name in self.fields]

    def model_fields(self) -> dict[str, Any]:
        """Return the entered values by column of the model Project."""
        values = dict(self.cleaned_data)
        pools = {
            kind.name: values.pop(f"{kind.name}_pools")
            for kind in POOL_KINDS
            if f"{kind.name}_pools" in values
        }
        return values | ({"node_pools": pools} if pools else {})


@signed_in
def project_list(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show all projects: quota, allocation, fair share."""
    page = list_page(PROJECTS, actor, Project.objects.all(), request.GET.dict())
    return show(request, actor, "dashboards/projects.html", {"page": page})


@signed_in
def project_new(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the form of a new project; create the project on POST. For admins."""
    require_admin(actor)
    form = ProjectForm(_posted(request), initial={"priority": 0})
    if request.method == "POST" and form.is_valid():
        try:
            project = create_project(form.model_fields(), actor=actor)
        except Conflict as conflict:
            form.add_error("name", conflict.detail)
        else:
            _show_saved(
                request, project, _("%(name)s was created; now add members.") % {"name": project.name}
            )
            return redirect("project", project.name)
    context = {"title": _("New project"), "back": "projects"}
    return show_form(request, actor, "dashboards/project_form.html", form, context)


@signed_in
def project_page(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Show one project: its quota and limits, allocation, members and jobs."""
    return _page(request, actor, project_for(actor, name), {})


@signed_in
def project_edit(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Show the form of a project; save it on POST, unless the project has changed meanwhile. Owners may change
    some fields, admins all."""
    project = project_for(actor, name, needed=Role.OWNER)
    form = ProjectForm(
        _posted(request), initial=_initial(project), project=project, is_owner_only=not actor.is_admin
    )
    if request.method == "POST" and form.is_valid():
        if _is_as_seen(request, form):
            edit_project(project, form.model_fields(), actor=actor)
            _show_saved(request, project, _("Saved."))
            return redirect("project", project.name)
        form.add_error(None, _("It was changed while this form was open. Save again to replace that change."))
    title = _("Edit %(name)s") % {"name": name}
    context = {"project": project, "title": title, "seen": _fingerprint(form)}
    return show_form(request, actor, "dashboards/project_form.html", form, context)


@require_POST
@signed_in
def project_what_if(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Show, as a part of the form, what the entered share would change, or with `?last_week` would have
    changed. Writes nothing."""
    project = project_for(actor, name, needed=Role.OWNER)
    form = ProjectForm(request.POST, project=project)
    if not form.is_valid():
        problem = next(iter(form.errors.values()))[0]
        return render(request, "dashboards/parts/what_if.html", {"problem": problem})
    is_week = "last_week" in request.GET
    context = what_if(project, form.model_fields(), visible_project_names(actor), is_week=is_week)
    return render(request, "dashboards/parts/what_if.html", context)


@signed_in
def project_delete(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Show what will be deleted with the project; delete it on a POST that repeats its name. For admins."""
    project = project_for(actor, name, needed=Role.OWNER)
    require_admin(actor)
    if request.method == "POST" and request.POST.get("confirm") == name:
        done = _("%(name)s is deleted.") % {"name": name}
        if attempt(request, lambda: delete_project(project, actor=actor), done):
            return redirect("projects")
    context = {"project": project, "along": taken_along(project)}
    return show(request, actor, "dashboards/project_delete.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def member_set(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Add a member or change a role; for owners. An error is shown at its field. A GET redirects to the project's
    page."""
    project = project_for(actor, name, needed=Role.OWNER)
    if request.method != "POST":
        return redirect("project", project.name)
    name, role = request.POST.get("user", "").strip(), request.POST.get("role", "")
    try:
        user = find_user(name, project, actor=actor)
    except TooManyAttempts as refusal:
        return _page(request, actor, project, {"user": str(refusal)})
    if user is None or not user.is_active:
        text = _("There is no active user named {name}; an admin can create one.").format(name=name or "?")
        return _page(request, actor, project, {"user": text})
    is_member = project.memberships.filter(user=user).exists()
    try:
        set_member(project, user, role, actor=actor)
    except (Conflict, Invalid) as refusal:
        return _page(
            request, actor, project, {f"role of {user.username}" if is_member else "role": str(refusal)}
        )
    messages.success(request, _("{user} is {role} now.").format(user=user.username, role=role))
    return redirect("project", project.name)


@signed_in
def member_suggest(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Return JSON {"names"}: users whose names begin with `?q=`, [] for an invalid text. Answers 429 after too
    many searches."""
    try:
        names = user_names_starting_with(request.GET.get("q", "").strip(), name, actor=actor)
    except Invalid:
        # Too short to be a useful prefix.
        names = []
    except TooManyAttempts as refusal:
        headers = {"Retry-After": str(refusal.wait_seconds)}
        return JsonResponse({"names": []}, status=429, headers=headers)
    return JsonResponse({"names": names}, headers={"Cache-Control": "no-store"})


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def member_remove(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Remove a member; for owners. A GET with `?user=` asks for confirmation."""
    project = project_for(actor, name, needed=Role.OWNER)
    sent = request.POST if request.method == "POST" else request.GET
    user = User.objects.filter(username=sent.get("user", "").strip(), memberships__project=project).first()
    if user is None:
        messages.error(request, _("This user is not a member of {project}.").format(project=project.name))
    elif request.method != "POST":
        return ask(request, actor, about_removal(project, user))
    else:
        done = _("{user} is no longer a member.").format(user=user.username)
        attempt(request, lambda: remove_member(project, user, actor=actor), done)
    return redirect("project", project.name)


def _posted(request: HttpRequest) -> QueryDict | None:
    """Return the data of a submitted form, even if it is empty; None for a GET."""
    return request.POST if request.method == "POST" else None


def _page(
    request: HttpRequest, actor: Actor, project: Project, errors: Mapping[str, str]
) -> HttpResponseBase:
    """Show a project's page. `errors`: the messages by form field: "user" and "role" for the member to add, "role of
    <name>" for a member."""
    role = role_in(actor, project)
    unfinished, count = unfinished_of(actor, project)
    context = {
        "project": reads.project_row(project),
        "roles": Role.ORDER,
        "jobs": table(JOBS, unfinished, without=("project", *BESIDE)),
        "has_more_jobs": count > len(unfinished),
        "unfinished_count": count,
        "is_member": Role.is_at_least(role, Role.MEMBER),
        "is_owner": Role.is_at_least(role, Role.OWNER),
        "errors": errors,
        "raw": request.POST.dict() if errors else {"role": Role.MEMBER},
        "pool_kinds": POOL_KINDS,
    }
    return show(request, actor, "dashboards/project.html", context, status=400 if errors else 200)


def _show_saved(request: HttpRequest, project: Project, text: str) -> None:
    messages.success(request, text)
    warning = oversold_warning(project)
    if warning:
        messages.warning(request, warning)


def _initial(project: Project) -> Mapping[str, Any]:
    fields = {name: getattr(project, name) for name in ProjectForm.base_fields if hasattr(project, name)}
    pools = project.node_pools or {}
    return fields | {f"{kind.name}_pools": pools.get(kind.name, []) for kind in POOL_KINDS}


def _fingerprint(form: ProjectForm) -> str:
    """Return a hash of the values that the project has for the fields of the form."""
    shown = [(name, form.initial.get(name)) for name in sorted(form.fields)]
    return sha256(repr(shown).encode()).hexdigest()[:16]


def _is_as_seen(request: HttpRequest, form: ProjectForm) -> bool:
    """Return whether the project still has the values that the form showed, so that no change in between is lost;
    True for a form without the field `seen`."""
    return request.POST.get("seen", "") in ("", _fingerprint(form))


def _pools_field(label: str, pools: list[tuple[str, str]]) -> forms.MultipleChoiceField:
    boxes = forms.CheckboxSelectMultiple
    return forms.MultipleChoiceField(label=_(label), required=False, choices=pools, widget=boxes)
