"""The part of kubectl's jsonpath that scripts use: `{.results[*].name}`, `{.status.pods[0].node}`, text around
braces.

Supported in braces: `.name`, `['name']`, `[3]`, `[-1]`, `[*]`, `.*`, `[?(@.path=="text")]` (also with `!=`), a
quoted text such as `{", "}`, and `{range .path[*]} ... {end}`, which repeats its body for each value. A path without
braces is read as if it had them. A missing name yields nothing. Malformed templates raise CliError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from controlplane.cli.errors import USAGE, CliError

_BRACES = re.compile(r"\{((?:[^{}\"']|\"(?:[^\"\\]|\\.)*\"|'[^']*')*)\}")
_STEP = re.compile(
    r"\.(?P<name>[A-Za-z_][\w-]*|\*)"
    r"|\[(?P<index>-?\d+)\]"
    r"|\[(?P<star>\*)\]"
    r"|\['(?P<quoted>[^']*)'\]"
    r"|\[\?\(@(?P<where>(?:\.[A-Za-z_][\w-]*)+)\s*(?P<op>==|!=)\s*(?P<value>\"[^\"]*\"|'[^']*'|[-\w.]+)\)\]"
)


def render(template: str, document: Any) -> str:
    """Return the text that `template` gives for `document`. Several values of one path are separated by blanks, as in
    kubectl. Raise CliError (2) if the template is malformed."""
    if "{" not in template:
        template = "{%s}" % (template if template.startswith((".", "[")) else f".{template}")
    tokens = list(_tokens(template))
    text, left = _rendered(tokens, document)
    if left:
        # An {end} without a {range}.
        raise _bad(template)
    return text


def values(path: str, document: Any) -> list[Any]:
    """Return every value that `path` selects in `document`, in order; [] if there is none. Raise CliError (2) if the
    path is malformed."""
    found, position = [document], 0
    path = path.removeprefix("$")
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise _bad(path)
        found = [value for parent in found for value in _children(step, parent)]
        position = step.end()
    return found


def _tokens(template: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of the template as (whether the part was in braces, its text). Raise CliError (2) for an
    unmatched brace."""
    end = 0
    for match in _BRACES.finditer(template):
        yield False, template[end : match.start()]
        yield True, match.group(1).strip()
        end = match.end()
    if "{" in template[end:] or "}" in template[end:]:
        raise _bad(template)
    yield False, template[end:]


def _rendered(tokens: list[tuple[bool, str]], document: Any) -> tuple[str, list[tuple[bool, str]]]:
    """Return the text of a block, which ends at its {end} or with the last token, and the tokens from that {end} on;
    [] if there is no {end}."""
    parts: list[str] = []
    while tokens:
        (is_expression, text), tokens = tokens[0], tokens[1:]
        if not is_expression:
            parts.append(_unescaped(text))
        elif text == "end":
            return "".join(parts), [(True, text), *tokens]
        elif text.partition(" ")[0] == "range":
            repeated, tokens = _repeated(text.removeprefix("range").strip(), tokens, document)
            parts.append(repeated)
        else:
            parts.append(_expression(text, document))
    return "".join(parts), []


def _repeated(path: str, block: list[tuple[bool, str]], document: Any) -> tuple[str, list[tuple[bool, str]]]:
    """Return the text of a {range} block, once for each value of `path`, and the tokens after its {end}. `block`: the
    tokens from the block on. Raise CliError (2) without an {end}."""
    # Rendered without a value first, only to find the end of the block: there may be no values.
    left = _rendered(block, None)[1]
    if not left:
        raise _bad(f"range {path} without end")
    return "".join(_rendered(block, value)[0] for value in values(path, document)), left[1:]


def _expression(expression: str, document: Any) -> str:
    if expression[:1] in ("'", '"'):
        return _unescaped(expression[1:-1])
    return " ".join(
        _text(value) for value in values("" if expression in (".", "@") else expression, document)
    )


def _children(step: re.Match[str], parent: Any) -> list[Any]:
    name = step["quoted"] if step["quoted"] is not None else step["name"]
    if step["star"] or name == "*":
        return (
            list(parent.values()) if isinstance(parent, dict) else parent if isinstance(parent, list) else []
        )
    if step["where"]:
        return [child for child in parent if _matches(step, child)] if isinstance(parent, list) else []
    if step["index"] is not None:
        return _at(parent, int(step["index"]))
    return [parent[name]] if isinstance(parent, dict) and name in parent else []


def _at(parent: Any, index: int) -> list[Any]:
    is_inside = isinstance(parent, list) and -len(parent) <= index < len(parent)
    return [parent[index]] if is_inside else []


def _matches(step: re.Match[str], child: Any) -> bool:
    is_equal = step["value"].strip("'\"") in [_text(value) for value in values(step["where"], child)]
    return is_equal == (step["op"] == "==")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')


def _bad(path: str) -> CliError:
    return CliError(f"cannot read the jsonpath {path!r}", USAGE, "for example: -o jsonpath={.status.state}")
