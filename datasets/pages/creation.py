"""The page of a form that creates an object of a project."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from controlplane.access import Actor, project_for
from controlplane.models import Role
from dashboards.pages.base_page import show_form
from dashboards.pages.fields import saved
from dashboards.reads.submit import projects_to_submit_to


def new_page(
    request: HttpRequest,
    actor: Actor,
    form_class: Callable[..., forms.Form],
    create: Callable[..., Any],
    page: str,
    template: str,
) -> HttpResponseBase:
    """Show the form (GET), or create what it describes in the project that it names and go to its `page` (POST).

    `form_class` takes the names of the projects to choose from; `create` the project, the other fields and the actor.
    """
    projects = list(projects_to_submit_to(actor))
    posted = request.POST if request.method == "POST" else None
    form = form_class(projects, posted, initial={"project": request.GET.get("project")})
    if posted is not None and form.is_valid():
        fields = dict(form.cleaned_data)
        project = project_for(actor, fields.pop("project"), needed=Role.MEMBER)
        if made := saved(form, lambda: create(project, fields, actor=actor)):
            return redirect(page, made.pk)
    return show_form(request, actor, template, form, {"projects": projects})
