"""Strict JSON: no NaN, infinities, duplicate names or lone surrogates; bounded size and depth."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from rest_framework.parsers import BaseParser

from controlplane.api.problems import Problem

MAX_BODY_BYTES = 1 << 20
# Far below Python's recursion limit, which deep input would make the JSON parser exceed.
MAX_DEPTH = 32
# With possessive quantifiers, and with unterminated strings matched to the end, it takes one pass for any input.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class StrictJSONParser(BaseParser):
    """Parses application/json for REST framework. Raises Problem: 413 for a body above `most_bytes`, else 400 as
    `parse_json`."""

    media_type = "application/json"
    most_bytes = MAX_BODY_BYTES

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        length = parser_context["request"].META.get("CONTENT_LENGTH") if parser_context else None
        if length and length.isdecimal() and int(length) > self.most_bytes:
            raise self._too_large()
        # Bounded too, because Content-Length may be absent or wrong.
        raw = stream.read(self.most_bytes + 1)
        if len(raw) > self.most_bytes:
            raise self._too_large()
        return parse_json(raw)

    def _too_large(self) -> Problem:
        detail = f"The body is larger than {self.most_bytes >> 20} MiB; send less, or in parts."
        return Problem(413, "body_too_large", detail)


def parse_json(raw: bytes) -> Any:
    """Return the value of a JSON text in UTF-8. Raise Problem (400) for invalid JSON, and for what it allows but this
    API does not: duplicate names, lone surrogates, integers above 64 bits, floats beyond a double's range, more than
    MAX_DEPTH levels. The same for NaN and Infinity, which are no JSON but which Python reads."""
    _check_depth(raw)
    try:
        value = json.loads(
            raw.decode(),
            parse_float=_finite,
            parse_int=_bounded,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique,
        )
        # `json` accepts half a surrogate pair. It cannot be encoded as UTF-8, so storing or sending it would fail.
        if _SURROGATE_ESCAPE.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise Problem(400, "not_utf8", f"The body is not UTF-8 at byte {error.start}.") from error
    except UnicodeEncodeError as error:
        raise Problem(
            400, "not_unicode", "A string holds half a surrogate pair; send valid Unicode."
        ) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem(400, "broken_json", f"The body is not JSON: {error.msg} at {where}.") from error
    return value


def _check_depth(raw: bytes) -> None:
    depth = 0
    # Strings are removed first, because brackets inside them do not nest.
    for bracket in _BRACKETS.finditer(_STRINGS.sub(b"", raw)):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > MAX_DEPTH:
            raise Problem(
                400, "nested_too_deep", f"The body is nested deeper than {MAX_DEPTH} levels; flatten it."
            )


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Problem(400, "not_a_finite_number", f"{text[:40]} is beyond what a number can hold.")
    return value


def _bounded(text: str) -> int:
    """Return an integer of at most 64 bits, which is what databases and most JSON parsers hold. Raise Problem (400)
    above."""
    # Longer texts are out of range, and converting one takes time that grows with the square of its length.
    value = int(text) if len(text) <= 20 else 1 << 64
    if not -(1 << 63) <= value < 1 << 63:
        raise Problem(400, "number_too_large", f"{text[:40]} does not fit in 64 bits.")
    return value


def _refuse_constant(text: str) -> Any:
    raise Problem(400, "not_a_finite_number", f"{text} is not JSON; leave the value out or send null.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. Raise Problem (400) for a duplicate name. One pass, because an anonymous request may send
    10,000 names."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Problem(
                400, "duplicate_name", f"The name {name[:40]!r} is there twice in one object; send it once."
            )
        found[name] = value
    return found
