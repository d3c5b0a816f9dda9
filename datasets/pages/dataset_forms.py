"""Forms that create a dataset, change its description and access, and set its tags."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase, QueryDict
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.access import Actor, NotVisible, role_in
from controlplane.actions.errors import Invalid
from controlplane.models import Role
from dashboards.pages.base_page import attempt, show, signed_in
from dashboards.pages.fields import NameField, focus_errors, offer
from datasets.access import dataset_for
from datasets.actions.datasets import create_dataset, edit_dataset, remove_tag, tag_version
from datasets.models import Dataset, DatasetTag
from datasets.pages.creation import new_page
from datasets.pages.datasets import dataset_context, newest_numbers
from datasets.queries.datasets import find_version

NAME_MOST, DESCRIPTION_MOST, TAGS_SHOWN = 63, 500, 100


class DatasetForm(forms.Form):
    """Form of a new dataset, which has no version yet."""

    project = forms.ChoiceField(label=gettext_lazy("Project"))
    name = NameField(longest=NAME_MOST, label=gettext_lazy("Name"))
    description = forms.CharField(
        max_length=DESCRIPTION_MOST,
        required=False,
        label=gettext_lazy("Description"),
        help_text=gettext_lazy("What is in it, and where it comes from."),
    )

    def __init__(self, projects: list[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offer(self, "project", projects)


class DescriptionForm(forms.Form):
    """Form of a dataset's description and, for owners, of who may read it."""

    description = forms.CharField(
        max_length=DESCRIPTION_MOST, required=False, label=gettext_lazy("Description")
    )
    is_shared = forms.BooleanField(
        required=False, label=gettext_lazy("Every signed-in user may read it and mount it in jobs")
    )

    def __init__(self, is_owner: bool, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not is_owner:
            del self.fields["is_shared"]


class TagForm(forms.Form):
    """Form of a tag and the version that it names."""

    name = NameField(longest=NAME_MOST, label=gettext_lazy("Tag"))
    version = forms.ChoiceField(label=gettext_lazy("Version"))

    def __init__(self, dataset: Dataset, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offer(self, "version", newest_numbers(dataset))


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def dataset_new(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the form of a new dataset; create it on POST and go to its upload page."""
    return new_page(
        request, actor, DatasetForm, create_dataset, "dataset-upload", "datasets/dataset_new.html"
    )


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def dataset_edit(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """Show and save the form with the dataset's description and, for owners, who may read it."""
    dataset = dataset_for(actor, dataset_id, needed=Role.MEMBER)
    posted = request.POST if request.method == "POST" else None
    form = _description_form(dataset, actor, posted)
    if posted is not None and form.is_valid():
        edit_dataset(dataset, form.cleaned_data, actor=actor)
        messages.success(request, _("{name} is changed.").format(name=dataset.name))
        return redirect("dataset-page", dataset.pk)
    return _edit_page(request, actor, dataset, form, TagForm(dataset))


@require_POST
@signed_in
def tag_set(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """Create a tag for a version, or move it there."""
    dataset = dataset_for(actor, dataset_id, needed=Role.MEMBER)
    form = TagForm(dataset, request.POST)
    if form.is_valid():
        name, version = form.cleaned_data["name"], find_version(dataset, form.cleaned_data["version"])
        assert (
            version is not None
        )  # versions are never removed alone, and the form offers those that there are
        try:
            tag_version(dataset, name, version, actor=actor)
        except Invalid as refusal:
            form.add_error("name", refusal.errors[0].detail)
        else:
            words = _("{tag} names version {number} now.")
            messages.success(request, words.format(tag=name, number=version.number))
            return redirect("dataset-edit", dataset.pk)
    return _edit_page(request, actor, dataset, _description_form(dataset, actor), form)


@require_POST
@signed_in
def tag_remove(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """Remove a tag; its version stays."""
    dataset = dataset_for(actor, dataset_id, needed=Role.MEMBER)
    name = request.POST.get("name", "")[:NAME_MOST]
    done = _("The tag {tag} is removed.").format(tag=name)
    try:
        attempt(request, lambda: remove_tag(dataset, name, actor=actor), done)
    except NotVisible as gone:
        # Another member has removed it already.
        messages.error(request, str(gone))
    return redirect("dataset-edit", dataset.pk)


def _description_form(dataset: Dataset, actor: Actor, posted: QueryDict | None = None) -> DescriptionForm:
    is_owner = Role.is_at_least(role_in(actor, dataset.project), Role.OWNER)
    now = {"description": dataset.description, "is_shared": dataset.is_shared}
    return DescriptionForm(is_owner, posted, initial=now)


def _edit_page(
    request: HttpRequest, actor: Actor, dataset: Dataset, form: DescriptionForm, tag_form: TagForm
) -> HttpResponseBase:
    tags = DatasetTag.objects.filter(dataset=dataset).order_by("name").values("name", "version__number")
    context = dataset_context(actor, dataset) | {
        "form": form,
        "tag_form": tag_form,
        "tags": tags[:TAGS_SHOWN],
    }
    focus_errors(form)
    focus_errors(tag_form)
    status = 400 if form.errors or tag_form.errors else 200
    return show(request, actor, "datasets/dataset_edit.html", context, status=status)
