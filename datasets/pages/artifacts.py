"""Pages of one artifact and its deletion; rows of a job's artifacts."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from controlplane.access import Actor, role_in
from controlplane.models import Role
from dashboards.lists import cells
from dashboards.pages.asking import Question, ask
from dashboards.pages.base_page import attempt, show, signed_in
from datasets.access import artifact_for
from datasets.actions.artifacts import delete_artifact
from datasets.manifests import Manifest
from datasets.models import Artifact
from datasets.pages.contents import read_manifest
from datasets.queries.artifacts import artifact_rows, artifact_shape, artifact_shapes
from datasets.queries.datasets import child_shape, meant_in, shown
from datasets.queries.page_reads import PageReads
from jobs.models import Job

CHILDREN_SHOWN, ARTIFACTS_SHOWN = 200, 20
LOOKS = {
    Artifact.WAITING: ("second", gettext_lazy("When the job ends")),
    Artifact.KEEPING: ("accent", gettext_lazy("Being kept")),
    Artifact.READY: ("good", gettext_lazy("Kept")),
    Artifact.FAILED: ("bad", gettext_lazy("Failed")),
    Artifact.SKIPPED: ("second", gettext_lazy("Not kept")),
}


@require_http_methods(["GET", "HEAD"])
@signed_in
def artifact_page(request: HttpRequest, actor: Actor, artifact_id: str) -> HttpResponseBase:
    """Show an artifact and its files; `?path=weights` shows a directory."""
    artifact = artifact_for(actor, artifact_id)
    manifest, trouble = _manifest(artifact)
    given = request.GET.get("path", "").strip("/"), request.GET.get("after", "")
    directory, after = meant_in(manifest, *given)
    children = manifest.children(directory, after, CHILDREN_SHOWN + 1)
    role = role_in(actor, artifact.project)
    context = {
        "artifact": artifact_shape(artifact),
        "palette_index": artifact.project.palette_index,
        "badge": badge(artifact.state),
        "trouble": trouble,
        "is_ready": artifact.state == Artifact.READY,
        "is_owner": Role.is_at_least(role, Role.OWNER),
        "crumbs": _crumbs(artifact, directory),
        "children": [_row(artifact, child_shape(directory, child)) for child in children[:CHILDREN_SHOWN]],
        "next": _address(artifact, path=shown(directory), after=shown(children[-2].name))
        if len(children) > CHILDREN_SHOWN
        else "",
    }
    return show(request, actor, "datasets/artifact.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def artifact_delete(request: HttpRequest, actor: Actor, artifact_id: str) -> HttpResponseBase:
    """Show what will be deleted; delete the artifact on POST. For owners of its project."""
    artifact = artifact_for(actor, artifact_id, needed=Role.OWNER)
    back, job = reverse("artifact", args=[artifact.pk]), reverse("job", args=[artifact.job_id])
    if request.method == "POST":
        done = _("{name} is deleted.").format(name=artifact.name)
        is_done = attempt(request, lambda: delete_artifact(artifact, actor=actor), done)
        return redirect(job if is_done else back)
    sentences = [_("Its files cannot be recovered, unless a dataset or another artifact has them too.")]
    title = _("Delete {name}?").format(name=artifact.name)
    return ask(request, actor, Question(title, sentences, back, _("Delete the artifact")))


def artifacts_of_job(job: Job) -> list[dict[str, Any]]:
    """Return the artifacts of a job, at most ARTIFACTS_SHOWN, as rows for its page."""
    rows = artifact_rows(job.artifacts.order_by("name")[:ARTIFACTS_SHOWN])
    return [row | {"badge": badge(row["status"]["state"])} for row in artifact_shapes(rows)]


def badge(state: str) -> str:
    """Return the coloured badge of an artifact's state, as HTML."""
    tone, words = LOOKS[state]
    return cells.badge(tone, words)


def _manifest(artifact: Artifact) -> tuple[Manifest, str]:
    if artifact.state != Artifact.READY:
        return Manifest.empty(), ""
    manifest, trouble = read_manifest(PageReads(), artifact.project, artifact.manifest)
    return manifest or Manifest.empty(), trouble


def _row(artifact: Artifact, child: dict[str, Any]) -> dict[str, Any]:
    is_directory = child["kind"] == "directory"
    content = f"{reverse('api:artifact-content', args=[artifact.pk])}?{urlencode({'path': child['path']})}"
    url = _address(artifact, path=child["path"]) if is_directory else content
    return child | {"is_directory": is_directory, "url": url}


def _crumbs(artifact: Artifact, directory: bytes) -> list[tuple[str, str]]:
    names = [name for name in shown(directory).split("/") if name]
    return [(name, _address(artifact, path="/".join(names[: place + 1]))) for place, name in enumerate(names)]


def _address(artifact: Artifact, **fields: str) -> str:
    filled = {name: text for name, text in fields.items() if text}
    return f"{reverse('artifact', args=[artifact.pk])}{'?' if filled else ''}{urlencode(filled)}"
