"""Readers of single fields of a submission. No I/O: each takes a JSON value and returns the value to store, or raises
Refused with a code."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
ENV_VALUE_BYTES = 32 * 1024
MILLI = 1000
# The length of message columns, which PostgreSQL enforces.
LONGEST_MESSAGE = 500


class Names(NamedTuple):
    """The valid names of an object's keys: a pattern, the most characters, and a description for messages."""

    pattern: re.Pattern[str]
    longest: int
    words: str


ENV_NAMES = Names(
    re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), 255, "letters, digits and '_', and begin with no digit"
)
LABEL_NAMES = Names(
    re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"),
    63,
    "at most 63 letters, digits, '-', '_', '.' and '/', and begin and end with a letter or digit",
)


class FieldError(NamedTuple):
    """One refused field: its JSON pointer, a stable code, and a message with the next step."""

    pointer: str
    code: str
    detail: str


class Refused(ValueError):
    """A value that a reader refuses. `suffix`: JSON pointer within the field, for example `/3/port`."""

    def __init__(self, code: str, detail: str, suffix: str = "") -> None:
        super().__init__(detail)
        self.code, self.detail, self.suffix = code, detail, suffix


Reader = Callable[[Any], Any]


def dns_label(longest: int) -> Reader:
    """Return a reader of DNS labels of at most `longest` characters: lower-case letters, digits and hyphens; the
    first and last are no hyphens. It raises Refused for other values."""
    words = (
        f"Use 1 to {longest} lower-case letters, digits and hyphens; begin and end with a letter or digit."
    )
    return matching(DNS_LABEL, longest, "not_a_dns_label", words)


def matching(pattern: re.Pattern[str], longest: int, code: str, detail: str) -> Reader:
    """Return a reader of strings of at most `longest` characters that match the whole pattern. For other values it
    raises Refused with `code` and `detail`."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or len(value) > longest or not pattern.fullmatch(value):
            raise Refused(code, detail)
        return value

    return read


def text(longest: int) -> Reader:
    """Return a reader of strings of at most `longest` bytes in UTF-8. It raises Refused for other values, and for NUL
    characters and lone surrogates."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise Refused("not_a_string", "This must be a string.")
        if "\0" in value:
            raise Refused("contains_nul", "NUL characters cannot be passed to a process; remove them.")
        if len(value.encode("utf-8", "surrogatepass")) > longest:
            raise Refused("too_long", f"At most {longest} bytes.")
        if not value.isascii():
            _refuse_surrogates(value)
        return value

    return read


def _refuse_surrogates(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Refused("not_unicode", "The text holds half a surrogate pair; send valid Unicode.") from error


def whole(low: int, high: int) -> Reader:
    """Return a reader of integers from `low` to `high`, both included. It raises Refused for other values, also for
    booleans and floats such as 1.0."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused("not_a_whole_number", f"This must be a whole number from {low} to {high}.")
        if not low <= value <= high:
            raise Refused("out_of_range", f"This must be from {low} to {high}.")
        return value

    return read


def switch(value: Any) -> bool:
    """Return `value` if it is a boolean, else raise Refused."""
    if not isinstance(value, bool):
        raise Refused("not_a_boolean", "This must be true or false.")
    return value


def number(value: Any) -> float:
    """Return a finite JSON number as a float. Raise Refused for other values, also for booleans."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refused("not_a_number", "This must be a finite number.")
    return float(value)


def decimal(low: float, high: float) -> Reader:
    """Return a reader of finite numbers from `low` to `high`, both included, as floats. It raises Refused for
    others."""

    def read(value: Any) -> float:
        found = number(value)
        if not low <= found <= high:
            raise Refused("out_of_range", f"This must be from {low:.10g} to {high:.10g}.")
        return found

    return read


def milli_gpus(value: Any) -> int:
    """Return a number of GPUs per pod in milli-GPUs. Valid are 0, a share below 1 in steps of 0.001, and whole
    numbers up to 100,000; raise Refused for others."""
    count = number(value)
    if count < 0:
        raise Refused("out_of_range", "GPUs cannot be negative; use 0 for none.")
    if count > 100_000:
        raise Refused("out_of_range", "No cluster has that many GPUs; ask for fewer.")
    milli = round(count * MILLI)
    if abs(milli - count * MILLI) > 1e-6:
        raise Refused("gpu_share_too_fine", "Shares of a GPU go in steps of 0.001; round it.")
    if milli > MILLI and milli % MILLI:
        raise Refused("gpu_share_above_one", "Above 1, ask for whole GPUs.")
    return milli


def milli_cpus(value: Any) -> int:
    """Return a number of CPUs in milli-CPUs, rounded. Raise Refused below 0.001 and above 10,000."""
    count = number(value)
    if not 0.001 <= count <= 10_000:
        raise Refused("out_of_range", "CPUs must be above 0 and at most 10,000.")
    return round(count * MILLI)


def optional(reader: Reader) -> Reader:
    """Return a reader that returns None for null and passes other values to `reader`."""
    return lambda value: None if value is None else reader(value)


def listed(reader: Reader, most: int) -> Reader:
    """Return a reader of JSON lists with at most `most` entries, each read by `reader`, as a tuple. It raises Refused
    for other values; `suffix` starts with the index of the refused entry, and is "" for no list and a longer one."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Refused("not_a_list", "This must be a list.")
        if len(value) > most:
            raise Refused("too_many", f"At most {most} entries.")
        return tuple(inside(reader, entry, f"/{index}") for index, entry in enumerate(value))

    return read


def inside(reader: Reader, value: Any, suffix: str) -> Any:
    """Return `reader(value)` for a nested value. If it raises Refused, put `suffix` in front of the error's own
    `suffix`."""
    try:
        return reader(value)
    except Refused as refused:
        raise Refused(refused.code, refused.detail, suffix + refused.suffix) from refused


def mapped(names: Names, reader: Reader, most: int) -> Reader:
    """Return a reader of JSON objects with at most `most` keys, each valid by `names`; `reader` reads the values. It
    raises Refused for other values; `suffix` is a JSON pointer that begins with the refused key, or "" if the value is
    no object (not_an_object) or has too many keys (too_many)."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Refused("not_an_object", "This must be an object.")
        if len(value) > most:
            raise Refused("too_many", f"At most {most} names.")
        for key in value:
            if len(key) > names.longest or not names.pattern.fullmatch(key):
                detail = f"The name {key[:40]!r} must be {names.words}."
                raise Refused("bad_name", detail, "/" + pointer_part(key))
        return {key: inside(reader, entry, "/" + pointer_part(key)) for key, entry in value.items()}

    return read


def pointer_part(key: str) -> str:
    """Return a key escaped for a JSON pointer (RFC 6901). It is cut to 80 characters, and unprintable ones are
    replaced."""
    printable = "".join(char if char.isprintable() else "\ufffd" for char in key[:80])
    return printable.replace("~", "~0").replace("/", "~1")


def absolute_path(value: Any) -> str:
    """Return an absolute path of at most 4,096 bytes. Raise Refused for other values and for a path with a `..`
    component."""
    path: str = text(4096)(value)
    if not path.startswith("/") or ".." in path.split("/"):
        raise Refused("not_an_absolute_path", "Give an absolute path without '..'.")
    return path


def port(value: Any) -> dict[str, Any]:
    """Return a port such as {"port": 8888, "service_type": "ingress"}. Raise Refused if it is not from 1 to 65535,
    for other keys, and for another type; "ingress" is the default and only one."""
    if not isinstance(value, dict):
        raise Refused("not_an_object", 'A port is {"port": 8888}.')
    for key in value:
        if key not in {"port", "service_type"}:
            raise Refused("unknown_field", "A port has port and service_type.", "/" + pointer_part(key))
    if value.get("service_type", "ingress") != "ingress":
        raise Refused("unknown_service_type", "The service type is ingress.", "/service_type")
    return {"port": inside(whole(1, 65535), value.get("port"), "/port"), "service_type": "ingress"}


def not_yet(what: str) -> Reader:
    """Return a reader that accepts only empty values, so that a field for a feature that does not exist yet is
    refused instead of ignored. `what`: the feature's name in the message."""

    def read(value: Any) -> Any:
        if value:
            raise Refused("not_available", f"This installation has no {what}; leave the field out.")
        return value

    return read


class Readable(Protocol):
    """A declared field of a body: the reader of its value, and the value if the field is missing."""

    @property
    def read(self) -> Reader: ...
    @property
    def default(self) -> Any: ...


def read_fields(
    body: Mapping[str, Any], fields: Mapping[str, Readable], noun: str
) -> tuple[dict[str, Any], list[FieldError]]:
    """Return the values of all `fields`, and the refusals: unknown names in `body` first, then invalid values. A
    missing field has its default; an invalid one is left out of the values. `noun`: the object's name in messages."""
    errors = [
        FieldError("/" + pointer_part(name), "unknown_field", f"There is no such {noun}; check its spelling.")
        for name in body
        if name not in fields
    ]
    values: dict[str, Any] = {}
    for name, field in fields.items():
        try:
            values[name] = field.read(body[name]) if name in body else field.default
        except Refused as refused:
            errors.append(FieldError(f"/{name}{refused.suffix}", refused.code, refused.detail))
    return values, errors
