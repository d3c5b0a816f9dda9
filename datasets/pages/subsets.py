"""Pages that save and delete a subset of a version."""

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from controlplane.access import Actor, NotVisible
from controlplane.actions.errors import Conflict, Invalid
from controlplane.models import Role
from dashboards.pages.asking import Question, ask
from dashboards.pages.base_page import attempt, show_form, signed_in
from dashboards.pages.fields import add_errors, offer
from datasets.access import dataset_for
from datasets.actions.subsets import delete_subset, new_subset, save_subset
from datasets.models import Dataset, DatasetVersion
from datasets.pages.datasets import dataset_context, newest_numbers
from datasets.queries.datasets import LATEST, find_version
from datasets.selection import PATTERN_MOST_BYTES, PATTERNS_MOST, Selection
from datasets.storage.base import Blocked

# Limit on the version's files: selecting among more takes too long for a page request.
FILES_MOST = 100_000


class SubsetForm(forms.Form):
    """Form of a subset: version, name and patterns."""

    version = forms.ChoiceField(label=gettext_lazy("Version"))
    name = forms.RegexField(
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=63,
        label=gettext_lazy("Name"),
        error_messages={"invalid": gettext_lazy("Use lower-case letters, digits and hyphens.")},
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    include = forms.CharField(
        label=gettext_lazy("Files to take"),
        help_text=gettext_lazy("One pattern a line, such as train/** or *.png."),
        widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false"}),
    )
    exclude = forms.CharField(
        label=gettext_lazy("Files to leave out"),
        required=False,
        help_text=gettext_lazy("Patterns too; they take precedence over those above."),
        widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false"}),
    )

    def __init__(self, dataset: Dataset, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offer(self, "version", newest_numbers(dataset))

    def clean_include(self) -> list[bytes]:
        return _patterns(self.cleaned_data["include"])

    def clean_exclude(self) -> list[bytes]:
        return _patterns(self.cleaned_data["exclude"])


def _patterns(text: str) -> list[bytes]:
    found = [line.strip().encode() for line in text.splitlines() if line.strip()]
    if len(found) > PATTERNS_MOST or any(len(one) > PATTERN_MOST_BYTES for one in found):
        words = _("At most {count} patterns of {bytes} bytes each.")
        raise forms.ValidationError(words.format(count=PATTERNS_MOST, bytes=PATTERN_MOST_BYTES))
    return found


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def subset_new(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """GET: the form for a new subset of a version. POST: save it, or show the form with its errors (400)."""
    dataset = dataset_for(actor, dataset_id, needed=Role.MEMBER)
    posted = request.POST if request.method == "POST" else None
    form = SubsetForm(dataset, posted, initial={"version": request.GET.get("version", dataset.latest)})
    if posted is not None and form.is_valid() and (subset := _saved(form, dataset, actor)):
        return redirect(f"{reverse('dataset-files', args=[dataset.pk])}?version={subset.name}")
    return show_form(request, actor, "datasets/subset_new.html", form, dataset_context(actor, dataset))


def _saved(form: SubsetForm, dataset: Dataset, actor: Actor) -> DatasetVersion | None:
    """Save the subset that a valid form describes and return it; None, with the error added to the form, if that
    is refused."""
    sent = form.cleaned_data
    version = find_version(dataset, sent["version"])
    if version is None:
        form.add_error("version", _("{name} has no such version.").format(name=dataset.name))
        return None
    if version.files > FILES_MOST:
        words = _("It has more than {count} files; save a subset of it with: yard dataset subset {name}/NAME")
        form.add_error("version", words.format(count=f"{FILES_MOST:,}", name=version))
        return None
    try:
        new = new_subset(version, Selection(sent["include"], sent["exclude"]))
        return save_subset(new, sent["name"], actor=actor)[0]
    except (Conflict, Blocked) as refusal:
        form.add_error("name" if isinstance(refusal, Conflict) else None, refusal.detail)
    except Invalid as invalid:
        add_errors(form, invalid)
    return None


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def subset_delete(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """GET: ask for confirmation. POST: delete the subset that the query names, such as `?name=3/train`, and go to
    the dataset's page. Raises NotVisible if there is no such subset. For owners of the project."""
    dataset = dataset_for(actor, dataset_id, needed=Role.OWNER)
    subset = find_version(dataset, request.GET.get("name", LATEST))
    if subset is None or not subset.subset:
        raise NotVisible(f"{dataset.name} has no such subset.")
    if request.method == "POST":
        done = _("{name} is deleted.").format(name=subset)
        attempt(request, lambda: delete_subset(subset, actor=actor), done)
        return redirect("dataset-page", dataset.pk)
    question = Question(
        title=_("Delete {name}?").format(name=subset),
        sentences=[
            _("The subset is deleted with its caches. The version and its files stay."),
            _("Jobs that have ended keep the name of the subset that they used."),
        ],
        back=reverse("dataset-page", args=[dataset.pk]),
        do=_("Delete the subset"),
    )
    return ask(request, actor, question)
