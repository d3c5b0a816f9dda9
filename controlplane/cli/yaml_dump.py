"""Write JSON data as YAML: block style, keys in their order, text quoted where YAML would read another type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@%+-]*( [A-Za-z0-9_./@%+-]+)*\Z")
_RESERVED = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "~"])


def dump(document: Any) -> str:
    """Return the document as YAML, with a newline at its end."""
    return "\n".join(_lines(document, 0)) + "\n"


def _lines(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict) and value:
        yield from _mapping(value, depth)
    elif isinstance(value, list) and value:
        yield from _sequence(value, depth)
    else:
        yield "  " * depth + _scalar(value)


def _mapping(value: dict[str, Any], depth: int) -> Iterator[str]:
    for key, item in value.items():
        head = f"{'  ' * depth}{_scalar(str(key))}:"
        if isinstance(item, (dict, list)) and item:
            yield head
            yield from _lines(item, depth + isinstance(item, dict))
        else:
            yield f"{head} {_scalar(item)}"


def _sequence(value: list[Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for item in value:
        first, *rest = _lines(item, depth + 1)
        yield f"{indent}- {first.lstrip(' ')}"
        yield from rest


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.match(value) and value.lower() not in _RESERVED:
        return value
    return json.dumps(value, ensure_ascii=True)
