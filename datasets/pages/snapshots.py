"""Restore and delete a snapshot from its row on a page."""

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from controlplane.access import Actor
from controlplane.actions.errors import Conflict
from controlplane.fields import Refused, dns_label
from controlplane.models import Role
from dashboards import formats
from dashboards.pages.asking import Question, ask
from dashboards.pages.base_page import attempt, show, signed_in
from datasets.access import snapshot_for
from datasets.actions.snapshots import delete_snapshot, restore_snapshot
from datasets.models import Snapshot, Volume

LONGEST_NAME = 63


@require_http_methods(["GET", "POST"])
@signed_in
def snapshot_restore(request: HttpRequest, actor: Actor, snapshot_id: str) -> HttpResponseBase:
    """GET: ask for the new volume's name. POST: create the volume from the snapshot, and go to its page."""
    snapshot = snapshot_for(actor, snapshot_id, needed=Role.MEMBER)
    name, error = _free_name(snapshot), ""
    if request.method == "POST":
        name = request.POST.get("name", "").strip()
        try:
            volume = restore_snapshot(snapshot, dns_label(LONGEST_NAME)(name), actor=actor)
            return redirect("volume", volume.pk)
        except Conflict as conflict:
            error = conflict.detail
        except Refused as refused:
            error = str(refused)
    context = {"snapshot": snapshot, "name": name, "error": error, "back": back_of(snapshot)}
    return show(request, actor, "datasets/restore.html", context, status=409 if error else 200)


@require_http_methods(["GET", "POST"])
@signed_in
def snapshot_delete(request: HttpRequest, actor: Actor, snapshot_id: str) -> HttpResponseBase:
    """Ask for confirmation; start the removal of the snapshot on POST. For owners of its project."""
    snapshot = snapshot_for(actor, snapshot_id, needed=Role.OWNER)
    if request.method == "POST":
        name = str(snapshot)
        attempt(
            request,
            lambda: delete_snapshot(snapshot, actor=actor),
            _("%(name)s is being deleted.") % {"name": name},
        )
        return redirect(back_of(snapshot))
    size = formats.binary_size(snapshot.size_bytes)
    question = Question(
        title=_("Delete {name}?").format(name=snapshot),
        sentences=[
            _(
                "It holds {size}. Files shared with other snapshots stay there; its own cannot be recovered."
            ).format(size=size)
        ],
        back=back_of(snapshot),
        do=_("Delete the snapshot"),
    )
    return ask(request, actor, question)


def back_of(snapshot: Snapshot) -> str:
    """Return the URL of the page that lists the snapshot: its volume's, or the list if the volume was
    deleted."""
    if snapshot.volume_id:
        return reverse("volume", args=[snapshot.volume_id])
    return reverse("volumes")


def _free_name(snapshot: Snapshot) -> str:
    taken = set(Volume.objects.filter(project=snapshot.project_id).values_list("name", flat=True))
    end = f"-{snapshot.number}"
    base = f"{snapshot.volume_name[: LONGEST_NAME - 8 - len(end)].rstrip('-')}{end}"
    return next(
        name
        for name in (base, *(f"{base}-{again}" for again in range(2, len(taken) + 3)))
        if name not in taken
    )
