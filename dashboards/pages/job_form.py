"""The submit form: converts text fields to the REST submission body, and shows errors at their fields."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane.access import Actor, Forbidden, NotVisible, project_for
from controlplane.actions.errors import Conflict, Invalid
from controlplane.models import Project, Role
from dashboards.command_line import yard_submit
from dashboards.pages.base_page import show, signed_in
from dashboards.reads import submit as reads
from datasets.code_manifest import FILES_MOST
from jobs.access import job_for, visible_jobs
from jobs.actions import check_submission, clone_body, submit_job
from jobs.fields import values
from jobs.fields.declaration import MORE, SHORT, Field, Input
from jobs.fields.declared import DECLARED
from jobs.fields.values import LINES
from jobs.images import image_notice, known_images
from jobs.kinds.registry import DEFAULT, KINDS
from jobs.kinds.spec import SpecInvalid, parse_spec, to_edge

INPUTS = tuple(field for field in DECLARED if field.input)
# Checkboxes that apply to all entries of a list.
CHECKS = [(field.name, field.entries) for field in INPUTS if field.entries and field.entries.label]

# Mount paths of a volume and of a dataset that the URL names.
MOUNT_PATH, DATASET_PATH = "/mnt", "/data"

Errors = dict[str, str]


class Unreadable(ValueError):
    """The text of a form field is invalid."""

    def __init__(self, errors: Errors) -> None:
        super().__init__("; ".join(errors.values()))
        self.errors = errors


def to_body(raw: Mapping[str, str]) -> dict[str, Any]:
    """Return the submission of a filled form; omits empty fields. `raw`: the form's texts. Raises Unreadable with
    the errors of all fields that cannot be parsed."""
    body, errors = read_body(raw)
    if errors:
        raise Unreadable(errors)
    return body


def read_body(raw: Mapping[str, str]) -> tuple[dict[str, Any], Errors]:
    """Parse the texts of a filled form (`raw`, by field); return the submission of the valid fields, and the
    errors by field."""
    errors: Errors = _too_long(raw)
    filled = {name: text.strip() for name, text in raw.items() if name not in errors and text.strip()}
    body: dict[str, Any] = {}
    for field in INPUTS:
        if field.name in filled:
            try:
                body[field.name] = parse_text(field, filled[field.name])
            except Unreadable as error:
                errors |= error.errors
    for name, check in CHECKS:
        for entry in body.get(name, ()):
            entry[check.key] = check.on if check.name in filled else check.off
    return body, errors


def parse_text(field: Field, text: str) -> Any:
    """Return the JSON value of a field from its text in the form. Raises Unreadable, with the reason, if it
    cannot be parsed."""
    value = field.value
    if value.separator == LINES:
        lines = enumerate(text.splitlines(), 1)
        return value.gather([_piece(field, line, number) for number, line in lines if line.strip()])
    if value.pieces:
        return value.gather([_piece(field, word) for word in text.replace(",", " ").split()])
    return _piece(field, text)


def _piece(field: Field, text: str, line: int = 0) -> Any:
    """Return the value of a part of a field's text: the line with the number `line`, or for 0 a word or the whole
    text. Blanks around the "=" of a line are dropped. Raises Unreadable if it cannot be parsed."""
    written = "=".join(part.strip() for part in text.strip().split("=", 1)) if line else text
    try:
        return field.value.parse(written)
    except (ValueError, OverflowError):
        said = _("Line {number}, {line}: Write one {what} a line.") if line else _("Write {what}.")
        shown = written if len(written) <= 40 else f"{written[:39]}…"
        message = said.format(number=line, line=shown, what=_(field.value.text))
        raise Unreadable({field.name: message}) from None


def to_fields(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the form's fields for a submission; the inverse of `to_body`."""
    body = {**body, "command": [*(body.get("command") or ()), *(body.get("args") or ())]}
    fields = {
        field.name: field.value.show(body[field.name])
        for field in INPUTS
        if body.get(field.name) not in (None, [], {})
    }
    for name, check in CHECKS:
        is_on = any(entry.get(check.key) == check.on for entry in body.get(name) or ())
        fields[check.name] = "yes" if is_on else ""
    return fields


def initial_fields() -> dict[str, str]:
    """Return the texts of the form's fields before the user has entered anything: their defaults."""
    shown = {field.name: field.value.show(field.omitted) for field in INPUTS if field.omitted}
    stated = {field.name: field.input.initial for field in INPUTS if field.input and field.input.initial}
    return shown | stated | {"kind": DEFAULT.name}


@signed_in
def job_new(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the form, empty or filled from another job (`?clone=<id>`); submit it on POST."""
    if request.method == "POST":
        return _submit(request, actor)
    raw = initial_fields() | {
        "project": request.GET.get("project") or next(iter(reads.projects_to_submit_to(actor)), "")
    }
    if request.GET.get("clone"):
        job = job_for(actor, request.GET["clone"])
        body = clone_body(job, f"{job.name}-2"[-63:])
        raw = to_fields(_on_volume(body, request.GET)) | {"project": job.project.name}
    elif request.GET.get("volume"):
        raw["volumes"] = f"{request.GET['volume']}:{MOUNT_PATH}"
    elif request.GET.get("dataset"):
        raw["datasets"] = f"{request.GET['dataset']}:{DATASET_PATH}"
    return _form(request, actor, raw, _check(actor, raw), is_refused=False)


@require_POST
@signed_in
def job_preview(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the preview of a submission: command line, errors by field, and expected wait. Writes nothing."""
    raw = request.POST.dict()
    checked = _check(actor, raw)
    return JsonResponse(
        {"command": checked.command(raw), "errors": checked.errors, "hint": checked.hint(raw)}
    )


@require_POST
@signed_in
def job_plan(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show, as a part of the form, where and when a submission would start and which jobs would stop for it.
    Writes nothing."""
    raw = request.POST.dict()
    checked, context = _check(actor, raw), dict[str, Any]()
    try:
        project = project_for(actor, raw.get("project", "")[:SHORT], needed=Role.MEMBER)
        if checked.errors:
            context = {"problem": checked.hint(raw)}
        else:
            context = reads.plan(project, checked.body, actor)
    except (NotVisible, Forbidden, Invalid, Conflict) as refusal:
        context = {"problem": next(iter(_by_field(refusal).values()))}
    return render(request, "dashboards/parts/plan.html", context)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of parsing a form: the submission `body`, all errors by field, and a sentence about the expected
    wait."""

    body: dict[str, Any]
    errors: Errors
    expectation: str = ""

    def command(self, raw: Mapping[str, str]) -> str:
        """Return the `yard` command line that submits the same. `raw`: the form's texts."""
        return yard_submit(raw.get("project", ""), self.body)

    def hint(self, raw: Mapping[str, str]) -> str:
        """Return a sentence about the expected wait or, if the form has errors, what to correct first. `raw`: the
        form's texts."""
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
    """Parse and check a form's texts (`raw`, by field): access to the project, single fields, and the whole
    submission. Return the result. For an actor who may not submit to any project, nothing is parsed. Writes
    nothing."""
    try:
        project = project_for(actor, raw.get("project", "")[:SHORT], needed=Role.MEMBER)
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
    """Return a sentence about the expected wait, with warnings about the submission."""
    sentences = (
        reads.expectation(project, spec),
        reads.data_notice(project, spec),
        image_notice(project, spec),
    )
    return " ".join(filter(None, sentences))


def _spec_errors(body: Mapping[str, Any]) -> Errors:
    try:
        parse_spec(body)
    except SpecInvalid as refusal:
        return _by_field(Invalid(*refusal.errors))
    return {}


def _form(
    request: HttpRequest, actor: Actor, raw: Mapping[str, str], checked: Checked, *, is_refused: bool
) -> HttpResponseBase:
    """Show the form filled with `raw`. `is_refused`: it was sent and refused; only then are the errors of
    `checked` shown, with status 400."""
    more = {field.name for field in INPUTS if field.input and field.input.section == MORE}
    listed = {
        "kinds": [(kind.name, kind.label) for kind in KINDS.values()],
        "pools": [(name, name) for name in reads.pool_names()],
    }
    context = {
        "raw": raw,
        "errors": checked.errors if is_refused else {},
        "more_open": _is_stated(raw, more) or bool(checked.errors.keys() & more),
        "command": checked.command(raw),
        "hint": checked.hint(raw),
        "projects": reads.projects_to_submit_to(actor),
        "sections": _sections(listed),
        "code_most": {"files": FILES_MOST, "bytes": settings.CODE_MOST_BYTES},
        "images": known_images(visible_jobs(actor)),
    }
    return show(request, actor, "dashboards/job_form.html", context, status=400 if is_refused else 200)


def _is_stated(raw: Mapping[str, str], names: Collection[str]) -> bool:
    """Return whether a form's texts (`raw`) state one of these fields otherwise than its kind of job has it anyway. A
    copied job states all fields."""
    stated = {name for name in names if raw.get(name, "").strip()}
    if not stated:
        return False
    try:
        usual = to_fields(
            to_edge(parse_spec({"name": "a", "kind": raw.get("kind", DEFAULT.name), "command": ["a"]}))
        )
    except SpecInvalid:
        usual = {}
    return any(raw[name].strip() != usual.get(name, "") for name in stated)


def _by_field(refusal: Exception) -> Errors:
    if isinstance(refusal, Invalid):
        errors: Errors = {}
        for error in refusal.errors:
            errors.setdefault(error.pointer.strip("/").partition("/")[0] or "form", error.detail)
        return errors
    if isinstance(refusal, Conflict):
        return {"name" if refusal.code == "name_in_use" else "form": refusal.detail}
    return {"project": str(refusal) or _("Choose a project that you are a member of.")}


def _sections(listed: Mapping[str, list[tuple[str, str]]]) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the form's inputs as section -> rows -> inputs. `listed`: lists of choices by the name that field
    declarations use."""
    sections: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for field in INPUTS:
        if field.input:
            row = sections.setdefault(field.input.section, {}).setdefault(field.input.row, [])
            row.append(_input(field, field.input, listed))
    return {name: [rows[number] for number in sorted(rows)] for name, rows in sections.items()}


def _input(field: Field, shown: Input, listed: Mapping[str, list[tuple[str, str]]]) -> dict[str, Any]:
    is_lines = field.value.separator == LINES
    lines = _("One {what} a line.").format(what=_(field.value.text)) if is_lines else ""
    choices = None if shown.choices is None else [(name, _(label)) for name, label in shown.choices]
    return {
        "name": field.name,
        "label": _(shown.label),
        "help": " ".join(filter(None, (lines, shown.help and _(shown.help)))),
        "is_lines": is_lines,
        "is_check": field.value.schema["type"] == "boolean",
        "is_command": field.value == values.command_line,
        "is_required": field.is_required,
        "choices": None if choices is None else choices + listed.get(shown.choices_from, []),
        "list": shown.choices_from if choices is None else "",
        "check": field.entries and field.entries.label and (field.entries.name, _(field.entries.label)),
    }


def _too_long(raw: Mapping[str, str]) -> Errors:
    limits = dict.fromkeys(raw, SHORT) | {field.name: field.most_characters for field in INPUTS}
    return {
        name: _("At most %(most)s characters; this has %(size)s.") % {"most": limits[name], "size": len(text)}
        for name, text in raw.items()
        if len(text) > limits[name]
    }


def _on_volume(body: dict[str, Any], asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the submission `body` with the volume `?volume=` mounted: in place of the volume `?instead=` or, if
    that is not mounted, in addition. Unchanged without `?volume=`. `asked`: the query parameters."""
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
