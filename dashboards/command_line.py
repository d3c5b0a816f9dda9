"""Write the `yard` command line that submits a filled form or an existing job. Pure."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from jobs.fields.code import VALUE as CODE
from jobs.fields.declaration import Field, Flag
from jobs.fields.declared import DECLARED
from jobs.kinds.base import Kind
from jobs.kinds.registry import DEFAULT, kind_named

# The job's own command comes last, after --.
_TRAILING = ("command", "args")


def yard_submit(project: str, spec: Mapping[str, Any]) -> str:
    """Return a shell command line that submits `spec`, a submission in REST form. Omits fields with their default
    value; NAME and PROJECT stand for a missing name or project."""
    kind = kind_named(str(spec.get("kind"))) or DEFAULT
    words = ["yard", kind.command, str(spec.get("name") or "NAME"), "-p", project or "PROJECT"]
    for field in DECLARED:
        if field.name not in _TRAILING and spec.get(field.name) not in (None, "", [], {}):
            words += _options(kind, field, spec[field.name])
    if spec.get("code"):
        words += ["--code", CODE.write(spec["code"])]
    command = [word for name in _TRAILING for word in spec.get(name) or ()]
    words += [*kind.command_flags, *(["--", *command] if command else [])]
    return " ".join(map(shlex.quote, words))


def _options(kind: Kind, field: Field, value: Any) -> Iterator[str]:
    flags = field.flags_of(kind.command)
    default = getattr(kind, field.kind_default) if field.kind_default else field.omitted
    if not flags or (value == default and not flags[0].is_required):
        return
    if flags[0].metavar is None:
        name = flags[0].names[-1]
        yield name if value else name.replace("--", "--no-", 1)
        return
    for piece in field.value.pieces(value) if field.value.pieces else [value]:
        text = field.value.write(piece)
        flag = next(flag for flag in reversed(flags) if _gives(flag, piece, text))
        yield from (flag.names[0], text)
    if field.entries and field.entries.flag:
        flag, off = field.entries.flag, field.entries.off
        others = [entry[field.entries.key] for entry in value if entry.get(field.entries.key, off) != off]
        yield from [flag.names[0], *([str(others[0])] if flag.metavar else [])] if others else []


def _gives(flag: Flag, piece: Any, text: str) -> bool:
    return text.startswith(flag.begins) and (not flag.sets or flag.sets.items() <= piece.items())
