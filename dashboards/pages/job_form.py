"""The submit form: text fields in, the same submission body as REST out, refusals back at their fields."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane.access import Actor, Forbidden, NotVisible, job_for, project_for, visible_jobs
from controlplane.actions.errors import Conflict, Invalid
from controlplane.models import Project, Role
from dashboards.command_line import READ_ONLY, mount_line, yard_submit
from dashboards.pages.base_page import show, signed_in
from dashboards.pages.fields import parse_duration, write_duration
from dashboards.reads import submit as reads
from jobs.actions import check_submission, clone_body, submit_job
from jobs.images import image_notice, known_images
from jobs.kinds.artifacts import ALWAYS, SUCCESS, parse_line
from jobs.kinds.artifacts import line as artifact_line
from jobs.kinds.registry import DEFAULT, KINDS
from jobs.kinds.spec import SpecInvalid, parse_spec

WHOLE = ("gpu_memory_mib", "memory_mib", "workers", "min_workers", "max_workers", "priority", "retries")
DECIMAL = ("gpus", "cpus")
SECONDS = ("max_runtime_seconds", "expected_runtime_seconds", "ttl_seconds_after_finished")
TEXT = ("name", "kind", "image", "working_dir", "node_pool")
PAIRS = ("env", "labels", "extra_resources")
MORE = (
    "datasets",
    "cached",
    "min_workers",
    "max_workers",
    "ports",
    "priority",
    "preemptible",
    *SECONDS,
    "retries",
    "labels",
    "secret_env",
    "image_pull_secrets",
    "extra_resources",
    "large_shm",
)  # behind "Ports, limits, …"
# Longer fields are not read: splitting a command takes time that grows with the square of its longest word.
LONG_FIELDS = ("command", "datasets", "artifacts", *PAIRS, "secret_env", "image_pull_secrets", "volumes")
LONG_FIELD_CHARACTERS, FIELD_CHARACTERS = 16 * 1024, 1024
DEFAULTS = {
    "kind": DEFAULT.name,
    "gpus": "1",
    "cpus": "1",
    "memory_mib": "1024",
    "workers": "1",
    "image": "quickstart",
}

# Where a volume is mounted that an address names.
MOUNT_PATH = "/mnt"

Errors = dict[str, str]


class Unreadable(ValueError):
    """The text of a form field is invalid."""

    def __init__(self, errors: Errors) -> None:
        super().__init__("; ".join(errors.values()))
        self.errors = errors


class LineUnreadable(ValueError):
    """A line, counted from 1, of a field with several lines is invalid."""

    def __init__(self, number: int, line: str) -> None:
        super().__init__(line)
        self.number, self.line = number, line if len(line) <= 40 else f"{line[:39]}…"


def to_body(raw: Mapping[str, str]) -> dict[str, Any]:
    """Return the submission of a filled form; empty fields are left out. Raises Unreadable."""
    body, errors = read_body(raw)
    if errors:
        raise Unreadable(errors)
    return body


def read_body(raw: Mapping[str, str]) -> tuple[dict[str, Any], Errors]:
    """Parse a filled form; return the values, and an error for each field that is invalid."""
    errors: Errors = _too_long(raw)
    filled = {name: text.strip() for name, text in raw.items() if name not in errors and text.strip()}
    body: dict[str, Any] = {name: filled[name] for name in TEXT if name in filled}
    body |= {name: _number(filled[name]) for name in (*WHOLE, *DECIMAL) if name in filled}
    readers: dict[str, Callable[[str], Any]] = {"command": shlex.split, "ports": _ports}
    readers |= {"secret_env": _secret_pairs, "image_pull_secrets": _words, "datasets": _datasets}
    readers |= {"volumes": _mounts, "snapshot_on": _words, "artifacts": _artifacts}
    readers |= dict.fromkeys(SECONDS, parse_duration) | dict.fromkeys(PAIRS, _pairs)
    for name in sorted(readers.keys() & filled.keys()):
        try:
            body[name] = readers[name](filled[name])
        except LineUnreadable as error:
            errors[name] = _("Line {number}, {line}: {help}").format(
                number=error.number, line=error.line, help=_help(name)
            )
        except ValueError:
            errors[name] = _help(name)
    if filled.get("preemptible") in ("yes", "no"):
        body["preemptible"] = filled["preemptible"] == "yes"
    for mount in body.get("datasets", ()):
        mount["cached"] = bool(filled.get("cached"))
    for kept in body.get("artifacts", ()):
        kept["when"] = ALWAYS if filled.get("keep_always") else SUCCESS
    return body | ({"large_shm": True} if filled.get("large_shm") else {}), errors


def to_fields(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the form fields that stand for a submission: to_body's way back."""
    fields = {name: str(body[name]) for name in (*TEXT, *WHOLE) if body.get(name) is not None}
    fields |= {name: f"{body[name]:g}" for name in DECIMAL if body.get(name) is not None}
    fields |= {name: write_duration(body[name]) for name in SECONDS if body.get(name)}
    fields |= {
        name: "\n".join(f"{key}={value}" for key, value in (body.get(name) or {}).items()) for name in PAIRS
    }
    fields["secret_env"] = "\n".join(
        f"{name}={source['secret']}:{source['key']}"
        for name, source in (body.get("secret_env") or {}).items()
    )
    mounts = body.get("datasets") or ()
    fields["datasets"] = "\n".join(
        f"{mount['dataset']}@{mount['version']}:{mount['mount_path']}" for mount in mounts
    )
    fields["cached"] = "on" if any(mount["cached"] for mount in mounts) else ""
    fields["image_pull_secrets"] = ", ".join(body.get("image_pull_secrets") or ())
    fields["command"] = shlex.join([*(body.get("command") or ()), *(body.get("args") or ())])
    fields["ports"] = ", ".join(str(port["port"]) for port in body.get("ports") or ())
    fields["volumes"] = "\n".join(mount_line(mount) for mount in body.get("volumes") or ())
    fields["snapshot_on"] = ", ".join(body.get("snapshot_on") or ())
    kept = body.get("artifacts") or ()
    fields["artifacts"] = "\n".join(map(artifact_line, kept))
    fields["keep_always"] = "on" if any(one["when"] == ALWAYS for one in kept) else ""
    fields["large_shm"] = "on" if body.get("large_shm") else ""
    if body.get("preemptible") is not None:
        fields["preemptible"] = "yes" if body["preemptible"] else "no"
    return fields


@signed_in
def job_new(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """The form, empty or filled from another job (`?clone=<id>`), and the submission itself."""
    if request.method == "POST":
        return _submit(request, actor)
    raw = DEFAULTS | {
        "project": request.GET.get("project") or next(iter(reads.projects_to_submit_to(actor)), "")
    }
    if request.GET.get("clone"):
        job = job_for(actor, request.GET["clone"])
        body = clone_body(job, f"{job.name}-2"[-63:])
        raw = to_fields(_on_volume(body, request.GET)) | {"project": job.project.name}
    elif request.GET.get("volume"):
        raw["volumes"] = f"{request.GET['volume']}:{MOUNT_PATH}"
    return _form(request, actor, raw, _check(actor, raw), is_refused=False)


@require_POST
@signed_in
def job_preview(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """What a submission would be: the command line, refusals by field, and what to expect. Writes nothing."""
    raw = request.POST.dict()
    checked = _check(actor, raw)
    return JsonResponse(
        {"command": checked.command(raw), "errors": checked.errors, "hint": checked.hint(raw)}
    )


@require_POST
@signed_in
def job_plan(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """A part of the form: where and when a submission would start, and what would stop for it. Writes nothing."""
    raw = request.POST.dict()
    checked, context = _check(actor, raw), dict[str, Any]()
    try:
        project = project_for(actor, raw.get("project", "")[:FIELD_CHARACTERS], needed=Role.MEMBER)
        if checked.errors:
            context = {"problem": checked.hint(raw)}
        else:
            context = reads.plan(project, checked.body, actor)
    except (NotVisible, Forbidden, Invalid, Conflict) as refusal:
        context = {"problem": next(iter(_by_field(refusal).values()))}
    return render(request, "dashboards/parts/plan.html", context)


@dataclass(frozen=True, slots=True)
class Checked:
    """A filled form as far as it can be read, everything that is wrong with it, and what to expect of it."""

    body: dict[str, Any]
    errors: Errors
    expectation: str = ""

    def command(self, raw: Mapping[str, str]) -> str:
        """The same from a shell, with what is filled in."""
        return yard_submit(raw.get("project", ""), self.body)

    def hint(self, raw: Mapping[str, str]) -> str:
        """What to expect, or what is in the way of knowing it."""
        others = [detail for field, detail in self.errors.items() if field != "name"]
        if others:
            return others[0]
        if self.errors and not raw.get("name", "").strip():
            return _("Fill in a name to see what the cluster would do with it.")
        return self.errors.get("name", self.expectation)


def _submit(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    raw = request.POST.dict()
    checked = _check(actor, raw)
    if not checked.errors:
        try:
            project = project_for(actor, raw.get("project", ""), needed=Role.MEMBER)
            return redirect("job", submit_job(project, checked.body, actor=actor).pk)
        except (Invalid, Conflict, NotVisible, Forbidden) as refusal:
            checked = Checked(checked.body, _by_field(refusal))
    return _form(request, actor, raw, checked, is_refused=True)


def _check(actor: Actor, raw: Mapping[str, str]) -> Checked:
    """Check everything at once: the actor's access to the project, the fields, and the spec. For an actor who
    may submit nowhere, nothing is read."""
    try:
        project = project_for(actor, raw.get("project", "")[:FIELD_CHARACTERS], needed=Role.MEMBER)
    except (NotVisible, Forbidden) as refusal:
        if not reads.projects_to_submit_to(actor):
            return Checked({}, _by_field(refusal))
        body, errors = read_body(raw)
        return Checked(body, _spec_errors(body) | _by_field(refusal) | errors)
    body, errors = read_body(raw)
    try:
        spec = check_submission(project, body)
    except (Invalid, Conflict) as refusal:
        return Checked(body, _by_field(refusal) | errors)
    return Checked(body, errors, "" if errors else _outlook(project, spec))


def _outlook(project: Project, spec: Mapping[str, Any]) -> str:
    """What to expect of a submission, and what is odd about it."""
    return " ".join(filter(None, (reads.expectation(project, spec), image_notice(project, spec))))


def _spec_errors(body: Mapping[str, Any]) -> Errors:
    try:
        parse_spec(body)
    except SpecInvalid as refusal:
        return _by_field(Invalid(*refusal.errors))
    return {}


def _form(
    request: HttpRequest, actor: Actor, raw: Mapping[str, str], checked: Checked, *, is_refused: bool
) -> HttpResponseBase:
    """The form; refusals are shown at their fields once it was sent, not while it is still empty."""
    more = {name for name in MORE if raw.get(name, "").strip()}
    context = {
        "raw": raw,
        "errors": checked.errors if is_refused else {},
        "more_open": bool(more | (checked.errors.keys() & set(MORE))),
        "command": checked.command(raw),
        "hint": checked.hint(raw),
        "projects": reads.projects_to_submit_to(actor),
        "kinds": KINDS.values(),
        "images": known_images(visible_jobs(actor)),
        "pools": reads.pool_names(),
    }
    return show(request, actor, "dashboards/job_form.html", context, status=400 if is_refused else 200)


def _by_field(refusal: Exception) -> Errors:
    if isinstance(refusal, Invalid):
        errors: Errors = {}
        for error in refusal.errors:
            errors.setdefault(error.pointer.strip("/").partition("/")[0] or "form", error.detail)
        return errors
    if isinstance(refusal, Conflict):
        return {"name" if refusal.code == "name_in_use" else "form": refusal.detail}
    return {"project": str(refusal) or _("Choose a project that you are a member of.")}


def _number(text: str) -> int | float | str:
    """A number as REST would send it; other text goes on as it is and is refused by its reader."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _ports(text: str) -> list[dict[str, Any]]:
    return [{"port": int(word), "service_type": "ingress"} for word in _words(text)]


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _pairs(text: str) -> dict[str, str]:
    return {name: value for _number, _line, name, value in _lines(text)}


def _secret_pairs(text: str) -> dict[str, dict[str, str]]:
    pairs = {}
    for number, line, name, source in _lines(text):
        secret, colon, key = source.partition(":")
        if not colon:
            raise LineUnreadable(number, line)
        pairs[name] = {"secret": secret, "key": key}
    return pairs


def _datasets(text: str) -> list[dict[str, Any]]:
    mounts = []
    for number, line in enumerate(text.splitlines(), 1):
        source, colon, path = line.strip().rpartition(":")
        name, _at, version = source.partition("@")
        if line.strip() and not (name and path):
            raise LineUnreadable(number, line.strip())
        if colon:
            mounts.append({"dataset": name, "version": version or "latest", "mount_path": path})
    return mounts


def _artifacts(text: str) -> list[dict[str, Any]]:
    return [parse_line(line.strip(), SUCCESS) for line in text.splitlines() if line.strip()]


def _lines(text: str) -> Iterator[tuple[int, str, str, str]]:
    """The filled lines of NAME=VALUE: their numbers, text, names and values."""
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.strip().partition("=")
        if line.strip() and not equals:
            raise LineUnreadable(number, line.strip())
        if line.strip():
            yield number, line.strip(), name.strip(), value.strip()


def _too_long(raw: Mapping[str, str]) -> Errors:
    limits = {name: LONG_FIELD_CHARACTERS if name in LONG_FIELDS else FIELD_CHARACTERS for name in raw}
    return {
        name: _("At most %(most)s characters; this has %(size)s.") % {"most": limits[name], "size": len(text)}
        for name, text in raw.items()
        if len(text) > limits[name]
    }


def _mounts(text: str) -> list[dict[str, Any]]:
    """Read mounts as `yard submit --pvc` takes them, one a line."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.strip().split(":")
        if parts == [""]:
            continue
        if len(parts) not in (2, 3, 4) or not all(parts):
            raise LineUnreadable(number, line)
        found.append(_mount(number, line, parts))
    return found


def _mount(number: int, line: str, parts: list[str]) -> dict[str, Any]:
    if len(parts) == 3 and parts[2] == READ_ONLY and not parts[0].startswith("/"):
        return {"volume": parts[0], "mount_path": parts[1], "read_only": True}
    if len(parts) == 2:
        source = "host_path" if parts[0].startswith("/") else "volume"
        return {source: parts[0], "mount_path": parts[1]}
    new = {"storage_class": parts[0], "size": parts[1]}
    if len(parts) == 4:
        new["name"] = parts[3]
    if not parts[2].startswith("/"):
        raise LineUnreadable(number, line)
    return {"new": new, "mount_path": parts[2]}


def _on_volume(body: dict[str, Any], asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the submission with the volume `?volume=` in the place of `?instead=`, or beside the others."""
    name, instead = asked.get("volume"), asked.get("instead")
    if not name:
        return body
    mounts = [dict(mount) for mount in body.get("volumes") or ()]
    replaced = [mount for mount in mounts if mount.get("volume") == instead]
    for mount in replaced:
        mount["volume"] = name
    if not replaced:
        mounts.append({"volume": name, "mount_path": MOUNT_PATH})
    return body | {"volumes": mounts}


def _help(name: str) -> str:
    if name == "volumes":
        return _("Write one VOLUME:PATH or CLASS:SIZE:PATH a line.")
    if name == "command":
        return _("A quotation mark is not closed.")
    if name == "ports":
        return _("Write port numbers, such as 8888, 6006.")
    if name == "secret_env":
        return _("Write one NAME=SECRET:KEY a line.")
    if name == "datasets":
        return _("Write one NAME@VERSION:PATH a line.")
    if name in PAIRS:
        return _("Write one NAME=VALUE a line.")
    return _("Write a duration such as 30m, 2h or 1d.")
