"""Pages of volumes: list, one volume with its jobs, snapshots and files; create, change, delete."""

from collections.abc import Callable, Mapping
from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.access import Actor, role_in
from controlplane.actions.errors import Conflict, Invalid
from controlplane.fields import Refused, dns_label
from controlplane.models import Role
from controlplane.notation import parse_duration, write_duration
from dashboards import formats
from dashboards.lists.table import list_page
from dashboards.pages.asking import Question, ask
from dashboards.pages.base_page import attempt, show, signed_in
from dashboards.pages.fields import NameField, offer
from dashboards.reads.submit import projects_to_submit_to
from datasets.access import visible_snapshots, visible_volumes, volume_for
from datasets.actions.snapshots import take_snapshot
from datasets.actions.volume_readings import ask_for
from datasets.actions.volumes import (
    KEEP_RULES,
    SNAPSHOT_MINUTES,
    clone_volume,
    create_volume,
    delete_volume,
    edit_volume,
    resize_volume,
    set_access_mode,
    set_service_tier,
)
from datasets.models import Volume
from datasets.models.volumes import CREATING
from datasets.pages.creation import new_page
from datasets.pages.volume_lists import MODES, VOLUMES, fullness, snapshots_shown, state_badge
from datasets.queries.volume_files import BeingRead, file_response, list_files
from datasets.queries.volumes import (
    SNAPSHOT,
    VOLUME,
    claims_volumes,
    storage_class_named,
    storage_classes_shown,
    unfinished_uses,
    volume_shape,
)
from datasets.storage.base import Blocked, ContentMissing
from jobs.fields.mounts import access_mode, size_bytes

FILES_SHOWN, SNAPSHOTS_SHOWN = 200, 100
KEEP = "keep"
PLAIN = "text/plain; charset=utf-8"


class VolumeForm(forms.Form):
    project = forms.ChoiceField(label=gettext_lazy("Project"))
    name = NameField(longest=63, label=gettext_lazy("Name"))
    size = forms.CharField(
        label=gettext_lazy("Size"), help_text=gettext_lazy("Such as 100Gi."), initial="100Gi"
    )
    access_mode = forms.ChoiceField(label=gettext_lazy("Jobs at once"), choices=list(MODES.items()))
    storage_class = forms.ChoiceField(label=gettext_lazy("Storage class"))

    def __init__(self, projects: list[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offer(self, "project", projects)
        offer(self, "storage_class", dict.fromkeys(one["name"] for one in storage_classes_shown()))

    def clean_size(self) -> int:
        return read_size(self.cleaned_data["size"])


def read_size(text: str) -> int:
    """Return the bytes of a size in a form, such as "10Gi". Raises ValidationError if it is malformed or out of
    range."""
    try:
        return size_bytes(text.strip())
    except Refused as refused:
        raise forms.ValidationError(str(refused)) from refused


@signed_in
def volume_list(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the volumes of projects that the actor may see."""
    page = list_page(VOLUMES, actor, visible_volumes(actor), request.GET.dict())
    may_create = bool(projects_to_submit_to(actor))
    return show(request, actor, "datasets/volumes.html", {"page": page, "may_create": may_create})


@require_http_methods(["GET", "POST"])
@signed_in
def volume_new(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the form of a new volume; create the volume on POST."""
    return new_page(request, actor, VolumeForm, create_volume, "volume", "datasets/volume_new.html")


@signed_in
def volume_page(request: HttpRequest, actor: Actor, volume_id: str) -> HttpResponseBase:
    """Show one volume: its use, the jobs that mount it, its snapshots and its current files."""
    volume = volume_for(actor, volume_id)
    context = _context(request, actor, volume)
    return show(request, actor, "datasets/volume.html", context)


@signed_in
def volume_file(request: HttpRequest, actor: Actor, volume_id: str) -> HttpResponseBase:
    """Download the file of a volume that `?path=` names. While a pod reads it, answer 202 and let the browser ask
    again; 409 with the reason if it cannot be read, 404 if it does not exist."""
    volume = volume_for(actor, volume_id)
    try:
        return file_response(volume, request.GET.get("path", ""))
    except ContentMissing as error:
        raise Http404(str(error)) from error
    except Blocked as blocked:
        return HttpResponse(blocked.detail, status=409, content_type=PLAIN)
    except BeingRead as waits:
        return _again(HttpResponse(_ask(volume, waits), status=202, content_type=PLAIN))


@require_POST
@signed_in
def volume_verb(request: HttpRequest, actor: Actor, volume_id: str, verb: str) -> HttpResponseBase:
    """Change a volume, or take a snapshot of it, by `verb` (a key of _VERBS), and go to its page, or that of the
    volume it creates."""
    # Retention rules delete snapshots, which only owners may do.
    volume = volume_for(actor, volume_id, needed=Role.OWNER if verb == KEEP else Role.MEMBER)
    run, done = _VERBS[verb]
    made: list[Any] = []

    def act() -> None:
        try:
            made.append(run(volume, request.POST, actor))
        except (Refused, Invalid, forms.ValidationError) as error:
            words = error.messages[0] if isinstance(error, forms.ValidationError) else str(error)
            raise Conflict("refused", words) from error

    if attempt(request, act, str(done)) and isinstance(made[0], Volume):
        return redirect("volume", made[0].pk)
    return redirect("volume", volume.pk)


@require_http_methods(["GET", "POST"])
@signed_in
def volume_delete(request: HttpRequest, actor: Actor, volume_id: str) -> HttpResponseBase:
    """Ask for confirmation; start the removal of the volume on POST. For owners of its project."""
    volume = volume_for(actor, volume_id, needed=Role.OWNER)
    back = reverse("volume", args=[volume.pk])
    if request.method == "POST":
        done = _("%(name)s is being deleted.") % {"name": volume.name}
        is_done = attempt(request, lambda: delete_volume(volume, actor=actor), done)
        return redirect("volumes" if is_done else back)
    size = formats.binary_size(volume.used_bytes)
    sentences = [_("It holds {size}, which cannot be recovered. Its snapshots stay.").format(size=size)]
    title = _("Delete {name}?").format(name=volume.name)
    return ask(request, actor, Question(title, sentences, back, _("Delete the volume")))


def _context(request: HttpRequest, actor: Actor, volume: Volume) -> dict[str, Any]:
    shown, role = volume_shape(volume), role_in(actor, volume.project)
    directory = request.GET.get("directory", "").strip("/")
    files, has_more, why_none, is_being_read = _files(volume, directory, request.GET.get("after", ""))
    origin, is_claim = shown["origin"] or {}, claims_volumes(volume.project)
    share = None if volume.used_bytes is None else volume.used_bytes / volume.size_bytes
    snapshots = snapshots_shown(volume.snapshots.order_by("-number")[:SNAPSHOTS_SHOWN])
    snapshot_count = volume.snapshots.count()
    found = None if is_claim else storage_class_named(volume.storage_class)
    return {
        "volume": shown,
        "palette_index": volume.project.palette_index,
        "state": state_badge(volume.state),
        "share": share,
        "fullness": fullness(share),
        "mode": MODES[volume.access_mode],
        "modes": MODES.items(),
        "tiers": list(found.service_tiers) if found else [],
        "is_tier_enforced": bool(found and found.is_tier_enforced),
        "is_claim": is_claim,
        "job_count": unfinished_uses(volume).count(),
        "snapshots": snapshots,
        "snapshot_count": snapshot_count,
        "has_more_snapshots": snapshot_count > len(snapshots),
        "rules": _rules(volume),
        "next_snapshot": volume.next_snapshot_at if volume.snapshot_minutes else None,
        "origin_url": _origin_url(actor, origin),
        "directory": directory,
        "crumbs": _crumbs(directory),
        "files": files,
        "after": files[-1]["name"] if has_more else "",
        "why_none": why_none,
        "is_being_read": is_being_read,
        "rerun": _rerun(origin),
        "snapshot_every": write_duration(60 * volume.snapshot_minutes) if volume.snapshot_minutes else "",
        "is_member": Role.is_at_least(role, Role.MEMBER),
        "is_owner": Role.is_at_least(role, Role.OWNER),
    }


def _files(volume: Volume, directory: str, after: str) -> tuple[list[dict[str, Any]], bool, str, bool]:
    """Return (entries of a directory, whether there are more, why there are none, whether to ask again soon).
    `after`: the last name of the previous page. Raises Http404 if there is no such directory."""
    try:
        return (*list_files(volume, directory, after, FILES_SHOWN), "", False)
    except ContentMissing as error:
        raise Http404(str(error)) from error
    except Blocked as blocked:
        # A volume that is being made is ready in seconds.
        return [], False, f"{blocked.detail} ({blocked.code})", volume.state == CREATING
    except BeingRead as waits:
        return [], False, _ask(volume, waits), True


def _ask(volume: Volume, waits: BeingRead) -> str:
    """Have a pod read the directory or file that `waits` names. Return the text to show until it has, or the
    reason why it cannot start."""
    try:
        ask_for(volume, waits)
    except Conflict as conflict:
        return conflict.detail
    return str(waits)


def _rules(volume: Volume) -> str:
    """Return how often snapshots are taken and which of them are kept, as text."""
    rules, kept = list[str](), list[str]()
    if volume.snapshot_minutes:
        rules.append(_("every {time}").format(time=write_duration(60 * volume.snapshot_minutes)))
    if volume.keep_last:
        kept.append(_("the last {count}").format(count=formats.number(volume.keep_last)))
    if days := volume.keep_days:
        words = ngettext("for {count} day", "for {count} days", days)
        kept.append(words.format(count=formats.number(days)))
    rules.append(_("kept: {rules}").format(rules=", ".join(kept)) if kept else _("all are kept"))
    return "; ".join(rules)


def _again(response: HttpResponse) -> HttpResponse:
    """Return the response with a header that makes the browser request it again after two seconds."""
    response["Refresh"] = "2"
    return response


def _crumbs(directory: str) -> list[tuple[str, str]]:
    steps = [step for step in directory.split("/") if step]
    return [(step, "/".join(steps[: place + 1])) for place, step in enumerate(steps)]


def _origin_url(actor: Actor, origin: Mapping[str, Any]) -> str:
    """Return the address of what the volume was made from: its volume, or the lineage of its snapshot; "" if that
    was deleted."""
    if origin.get("kind") == SNAPSHOT and visible_snapshots(actor).filter(pk=origin["id"]).exists():
        return reverse("lineage", args=[SNAPSHOT, origin["id"]])
    if origin.get("kind") == VOLUME and visible_volumes(actor).filter(pk=origin["id"]).exists():
        return reverse("volume", args=[origin["id"]])
    return ""


def _rerun(origin: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields with which to submit a restored volume's job again: the job (`job_id`, `job`) of its
    snapshot, and the volume to replace (`instead`). {} if `origin` names no such job."""
    if not origin.get("job_id"):
        return {}
    return {"job_id": origin["job_id"], "job": origin["job"], "instead": origin["volume"]}


def _resize(volume: Volume, posted: Mapping[str, str], actor: Actor) -> object:
    resize_volume(volume, read_size(posted.get("size", "")), actor=actor)
    return None


def _mode(volume: Volume, posted: Mapping[str, str], actor: Actor) -> object:
    set_access_mode(volume, access_mode(posted.get("access_mode")), actor=actor)
    return None


def _tier(volume: Volume, posted: Mapping[str, str], actor: Actor) -> object:
    set_service_tier(volume, posted.get("service_tier", ""), actor=actor)
    return None


def _keep(volume: Volume, posted: Mapping[str, str], actor: Actor) -> object:
    rules = {name: _count(posted.get(name, "")) for name in KEEP_RULES}
    rules["snapshot_minutes"] = _minutes(posted.get("snapshot_every", ""))
    edit_volume(volume, rules, actor=actor)
    return None


def _count(text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= 100_000:
        raise forms.ValidationError(_("Write a whole number from 1 to 100,000, or nothing."))
    return int(text)


def _minutes(text: str) -> int | None:
    try:
        minutes = parse_duration(text.strip()) // 60 if text.strip() else None
    except ValueError as error:
        raise forms.ValidationError(_("Write a duration such as 30m, 2h or 1d.")) from error
    if minutes is not None and not SNAPSHOT_MINUTES[0] <= minutes <= SNAPSHOT_MINUTES[1]:
        raise forms.ValidationError(
            _("Snapshots are taken every five minutes at most, and once a year at least.")
        )
    return minutes


def _clone(volume: Volume, posted: Mapping[str, str], actor: Actor) -> object:
    name, mode = dns_label(63)(posted.get("name", "").strip()), posted.get("access_mode", "")
    return clone_volume(volume, name, access_mode=access_mode(mode) if mode else "", actor=actor)


def _snapshot(volume: Volume, posted: Mapping[str, str], actor: Actor) -> object:
    return take_snapshot(volume, actor=actor)


_VERBS: dict[str, tuple[Callable[[Volume, Mapping[str, str], Actor], object], Any]] = {
    "snapshot": (_snapshot, gettext_lazy("A snapshot is being taken.")),
    "resize": (_resize, gettext_lazy("The size is being changed.")),
    "access-mode": (_mode, gettext_lazy("The access mode is changed.")),
    "tier": (_tier, gettext_lazy("The service tier is being changed.")),
    KEEP: (_keep, gettext_lazy("The rules are changed.")),
    "clone": (_clone, gettext_lazy("The copy is being made.")),
}
