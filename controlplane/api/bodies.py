"""Request bodies: each route declares its fields. Readers and errors are those of job specs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.actions.errors import Invalid
from controlplane.api.json_schema import STRING, Schema
from controlplane.api.problems import Problem
from controlplane.fields import FieldError, Reader, Refused, dns_label, pointer_part, text

DRY_RUN_ELSEWHERE = FieldError(
    "/dry_run", "dry_run_in_body", "Ask for a dry run in the query, ?dry_run=true; the body says what to do."
)


@dataclass(frozen=True, slots=True)
class BodyField:
    """One field of a JSON body: the reader of its value, which raises Refused, its JSON schema, and whether it must be
    present."""

    read: Reader
    schema: Schema
    is_required: bool = False


def text_field(longest: int, *, is_required: bool = False) -> BodyField:
    """Return a field for a text of at most `longest` bytes in UTF-8."""
    return BodyField(text(longest), {**STRING, "maxLength": longest}, is_required)


def label_field(longest: int, *, is_required: bool = False) -> BodyField:
    """Return a field for a DNS label of at most `longest` characters."""
    return BodyField(dns_label(longest), {**STRING, "maxLength": longest}, is_required)


def read_body(body: Any, fields: Mapping[str, BodyField]) -> dict[str, Any]:
    """Return the values of the fields that the body has. Raise Invalid with all refused fields (unknown, missing or
    invalid), Problem (400) if the body is not an object."""
    sent = as_object(body)
    errors = [
        DRY_RUN_ELSEWHERE
        if name == "dry_run"
        else FieldError(
            "/" + pointer_part(name), "unknown_field", "There is no such field; check its spelling."
        )
        for name in sent
        if name not in fields
    ]
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name not in sent:
            if field.is_required:
                errors.append(FieldError(f"/{name}", "required", f"Give a value for {name}."))
            continue
        try:
            values[name] = field.read(sent[name])
        except Refused as refused:
            errors.append(FieldError(f"/{name}{refused.suffix}", refused.code, refused.detail))
    if errors:
        raise Invalid(*errors)
    return values


def as_object(body: Any) -> dict[str, Any]:
    """Return the body if it is a JSON object, {} if it is empty. Raise Problem (400) for any other value."""
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise Problem(400, "not_an_object", "The body must be a JSON object.")
    return body


def body_schema(fields: Mapping[str, BodyField]) -> Schema:
    """Return the JSON schema of a body with these fields and no others."""
    schema: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: field.schema for name, field in fields.items()},
    }
    required = [name for name, field in fields.items() if field.is_required]
    return schema | ({"required": required} if required else {})
