"""Query fields: each route declares its own; unknown ones are refused."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.http import QueryDict

from controlplane.api.problems import Problem, bad_request

Schema = dict[str, Any]
# The largest integer of the databases: a larger one would raise an error instead of finding nothing.
BIGGEST = (1 << 63) - 1


class Unreadable(ValueError):
    """A query value that its reader cannot parse; the message states the expected form."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query field: the reader of its text, its JSON schema, its description, and its value if it is absent."""

    read: Callable[[str], Any]
    schema: Schema
    about: str
    default: Any = None


def read_query(query: QueryDict, known: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the values of all declared fields; an absent one has its default. Raise Problem (400) for an unknown,
    repeated or invalid field."""
    for name in query:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            detail = f"There is no query field {name[:40]!r} here; the known ones are: {listed}."
            raise bad_request("?" + name[:40], "unknown_query_field", detail)
    return {name: _read(query, name, parameter) for name, parameter in known.items()}


def text(about: str) -> Parameter:
    """Return a query field for any text; None if absent. `about`: its description in the OpenAPI document."""
    return Parameter(_text, {"type": "string"}, about)


def texts(about: str) -> Parameter:
    """Return a query field for 1 to 100 comma-separated texts, read as a list; None if absent. `about`: its
    description in the OpenAPI document."""
    return Parameter(
        _texts, {"type": "string"}, about + " Several values, separated by commas, match any of them."
    )


def choices(values: tuple[str, ...], about: str) -> Parameter:
    """Return a query field for comma-separated words out of `values`, read as a list; None if absent. `about`: its
    description in the OpenAPI document."""

    def read(value: str) -> list[str]:
        wanted = _texts(value)
        for one in wanted:
            if one not in values:
                raise Unreadable(f"{one[:40]!r} is none of: {', '.join(values)}.")
        return wanted

    # A pattern instead of an enum, because several values may be given.
    one = "(" + "|".join(values) + ")"
    return Parameter(read, {"type": "string", "pattern": f"^{one}(,{one})*$"}, about)


def whole(low: int, high: int, about: str, default: int | None = None) -> Parameter:
    """Return a query field for an integer from `low` to `high`, both included; `default` if absent. `about`: its
    description in the OpenAPI document."""

    def read(value: str) -> int:
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and low <= int(value) <= high):
            raise Unreadable(f"This must be a whole number from {low} to {high}.")
        return int(value)

    return Parameter(read, {"type": "integer", "minimum": low, "maximum": high}, about, default)


def switch(about: str, default: bool | None = None) -> Parameter:
    """Return a query field for `true` or `false`, read as a bool; `default` if absent. `about`: its description in
    the OpenAPI document."""

    def read(value: str) -> bool:
        if value not in ("true", "false"):
            raise Unreadable("This must be true or false.")
        return value == "true"

    return Parameter(read, {"type": "boolean"}, about, default)


def ids(about: str) -> Parameter:
    """Return a query field for 1 to 100 comma-separated UUIDs, read as a list; None if absent. `about`: its
    description in the OpenAPI document."""

    def read(value: str) -> list[uuid.UUID]:
        try:
            return [uuid.UUID(one) for one in _texts(value)]
        except ValueError as error:
            raise Unreadable("This must be a UUID, or several separated by commas.") from error

    return Parameter(read, {"type": "string"}, about)


def moment(about: str) -> Parameter:
    """Return a query field for a time in RFC 3339, read in UTC; without an offset it is UTC. None if absent. `about`:
    its description in the OpenAPI document."""

    def read(value: str) -> datetime:
        try:
            # A plus sign in a URL means a blank; callers often forget to escape it.
            found = datetime.fromisoformat(value.replace(" ", "+") if "T" in value else value)
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise Unreadable("This must be a time such as 2026-01-31T12:00:00Z.") from error

    return Parameter(read, {"type": "string", "format": "date-time"}, about)


def _read(query: QueryDict, name: str, parameter: Parameter) -> Any:
    values = query.getlist(name)
    if not values:
        return parameter.default
    if len(values) > 1:
        raise bad_request(
            "?" + name, "repeated_query_field", f"Give {name} once; separate values with commas."
        )
    if "\0" in values[0]:
        raise bad_request("?" + name, "contains_nul", "A query value cannot hold a NUL character.")
    try:
        return parameter.read(values[0])
    except Unreadable as error:
        raise bad_request("?" + name, f"bad_{name}", str(error)) from error


def _text(value: str) -> str:
    return value


def _texts(value: str) -> list[str]:
    found = [part for part in value.split(",") if part]
    if not found:
        raise Unreadable("Give at least one value, or leave the field out.")
    if len(found) > 100:
        raise Unreadable("At most 100 values.")
    return found


def whole_id(value: str, what: str) -> int:
    """Return `value`, a part of a URL's path, as an integer. Raise Problem (404) if it is no decimal number of 64
    bits. `what`: the kind of object, for the message."""
    if not (value.isascii() and value.isdecimal() and len(value) < 20 and int(value) <= BIGGEST):
        raise Problem(404, "not_found", f"There is no such {what}.")
    return int(value)
