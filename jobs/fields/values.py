"""Types of fields: how a value is read from JSON, described in a JSON schema, and written as text. Pure."""

import re
import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

from controlplane import fields, notation
from controlplane.api import json_schema as schemas
from controlplane.api.json_schema import Schema
from controlplane.fields import Names, Reader
from controlplane.scheduling.sizes import FASTEST, MOST_WORKERS, SLOWEST

# Schema keywords left out of answers: values stored by older versions may lie outside these limits.
LIMITS = ("minimum", "maximum", "maxLength", "maxItems", "maxProperties")
LONGEST_SECONDS = 10 * 365 * 86400
# Separators between the pieces of a list in a form field.
LINES, WORDS = "\n", ", "
_SIZES = Names(re.compile(r"[1-9][0-9]{0,3}|10000"), 5, f"a whole number from 1 to {MOST_WORKERS}")


class Value(NamedTuple):
    """The type of a field.

    `read`: converts submitted JSON to the stored value; raises Refused. `schema`: the JSON schema of submitted
    values; `answer`: the JSON schema of values in answers. `parse` and `write`: convert text to JSON and back, for
    flags and forms; `parse` raises ValueError, and `text` completes the message "is not ...". For a list or object,
    `pieces` splits the value into parts that are parsed and written singly, `gather` combines them, and `separator`
    joins their texts in a form.
    """

    read: Reader
    schema: Schema
    answer: Schema
    parse: Callable[[str], Any] = str
    write: Callable[[Any], str] = str
    text: str = ""
    pieces: Callable[[Any], list[Any]] | None = None
    gather: Callable[[list[Any]], Any] = list
    separator: str = ""

    def show(self, value: Any) -> str:
        """Return a JSON value as the text of a form field."""
        if self.pieces is None:
            return self.write(value)
        return self.separator.join(map(self.write, self.pieces(value)))

    def optional(self) -> "Value":
        """Return this type with null allowed."""
        return self._replace(
            read=fields.optional(self.read),
            schema=schemas.nullable(self.schema),
            answer=schemas.nullable(self.answer),
        )

    def or_default(self) -> "Value":
        """Return this type with null allowed in submissions, where it means the default; answers never
        contain null."""
        return self.optional()._replace(answer=self.answer)


def value(read: Reader, schema: Schema, **options: Any) -> Value:
    """Return a type whose values `read` converts. `options`: further fields of Value. Unless `answer` is given,
    the schema in answers is `schema` without limits such as lengths."""
    answer = {keyword: limit for keyword, limit in schema.items() if keyword not in LIMITS}
    return Value(read, schema, options.pop("answer", answer), **options)


def text(longest: int) -> Value:
    """Return the type of a text of at most `longest` bytes."""
    return value(fields.text(longest), {**schemas.STRING, "maxLength": longest})


def label(longest: int) -> Value:
    """Return the type of a DNS label of at most `longest` characters."""
    return value(fields.dns_label(longest), {**schemas.STRING, "maxLength": longest})


path = value(fields.absolute_path, {**schemas.STRING, "maxLength": 4096})


def nothing(what: str) -> Value:
    """Return the type of a field that accepts only null or "", because `what` is not supported yet."""
    return text(0).optional()._replace(read=fields.not_yet(what))


def whole(low: int, high: int) -> Value:
    """Return the type of a whole number from `low` to `high`."""
    schema = {**schemas.INTEGER, "minimum": low, "maximum": high}
    return value(fields.whole(low, high), schema, parse=int, text=f"a whole number from {low} to {high}")


def number(read: Reader, high: int) -> Value:
    """Return the type of a decimal number from 0 to `high`, which `read` converts."""
    schema = {**schemas.NUMBER, "minimum": 0, "maximum": high}
    return value(read, schema, parse=notation.parse_number, write=notation.write_number, text=notation.NUMBER)


def mebibytes(high: int) -> Value:
    """Return the type of a size in MiB, from 1 to `high`."""
    return whole(1, high)._replace(parse=notation.parse_size, write=notation.write_size, text=notation.SIZE)


seconds = whole(1, LONGEST_SECONDS)._replace(
    parse=notation.parse_duration, write=notation.write_duration, text=notation.DURATION
)
switch = value(
    fields.switch,
    schemas.BOOLEAN,
    parse=lambda text: bool(("no", "yes").index(text)),
    write=lambda is_on: "yes" if is_on else "no",
    text="yes or no",
)


def listed(read: Reader, most: int, items: Schema = schemas.STRING, **options: Any) -> Value:
    """Return the type of a list of at most `most` items. `read`: reads one item; `items`: its JSON schema;
    `options`: further fields of Value. As text, items are separated by commas unless `separator` is given."""
    schema = {**schemas.listed(items), "maxItems": most}
    return value(
        fields.listed(read, most), schema, **{"pieces": list, "separator": WORDS, "text": "a name"} | options
    )


def mapped(read: Reader, most: int, entry: Schema = schemas.STRING, **options: Any) -> Value:
    """Return the type of an object of at most `most` entries. `read`: reads the whole object; `entry`: JSON
    schema of a value; `options`: further fields of Value. A form field has one NAME=VALUE per line."""
    written = {
        "parse": notation.parse_pair,
        "write": "=".join,
        "text": notation.PAIR,
        "pieces": lambda found: list(found.items()),
        "gather": dict,
        "separator": LINES,
    }
    schema = {"type": "object", "additionalProperties": entry, "maxProperties": most}
    return value(read, schema, **written | options)


def counts(low: int, high: int, most: int) -> Value:
    """Return the type of a list of at most `most` whole numbers from `low` to `high`; as text, separated by
    commas."""
    one = whole(low, high)
    schema = {**schemas.listed(one.schema), "maxItems": most}
    return value(
        fields.listed(one.read, most),
        schema,
        answer=schemas.listed(one.answer),
        parse=lambda text: [int(number) for number in text.split(",")],
        write=lambda numbers: ",".join(map(str, numbers)),
        text="whole numbers with commas between them",
    )


def speeds(most: int) -> Value:
    """Return the type of an object with at most `most` speeds, from SLOWEST to FASTEST in any unit, by the number of
    workers, from 1 to MOST_WORKERS; written as N=S with commas between them."""
    entry = {**schemas.NUMBER, "minimum": SLOWEST, "maximum": FASTEST}
    schema = {"type": "object", "additionalProperties": entry, "maxProperties": most}
    return value(
        fields.mapped(_SIZES, fields.decimal(SLOWEST, FASTEST), most),
        schema,
        answer={"type": "object", "additionalProperties": schemas.NUMBER},
        parse=notation.parse_speeds,
        write=lambda found: ",".join(
            f"{name}={notation.write_number(speed)}" for name, speed in found.items()
        ),
        text="pairs such as 1=6.0,2=8.6",
    )


def texts(names: Names, longest: int, most: int) -> Value:
    """Return the type of an object that maps at most `most` names to texts of at most `longest` bytes. `names`:
    reads one name."""
    return mapped(fields.mapped(names, fields.text(longest), most), most)


_argument = fields.text(fields.ENV_VALUE_BYTES)
arguments = listed(_argument, 1000, text="an argument")
# In forms on one line, split into words as a shell does.
command_line = value(
    fields.listed(_argument, 1000),
    {**schemas.listed(schemas.STRING), "maxItems": 1000},
    parse=shlex.split,
    write=shlex.join,
    text="a command whose quotation marks are closed",
)

ports = listed(
    fields.port,
    20,
    schemas.OBJECT,
    parse=lambda text: {"port": int(text), "service_type": "ingress"},
    write=lambda port: str(port["port"]),
    text="a port number such as 8888",
)
