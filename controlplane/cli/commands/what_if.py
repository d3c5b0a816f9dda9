"""`yard project what-if`: which jobs would start, stop and wait with another share of the GPUs."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from controlplane.cli import formats
from controlplane.cli.commands.projects import add_share, share_fields
from controlplane.cli.errors import require_changes
from controlplane.cli.lookup import project_path
from controlplane.cli.parsing import Parser, add_flag
from controlplane.cli.session import Session
from controlplane.cli.tables import Column, Row, plain_table

# Replaying a week takes up to 20 s; allow one more scheduling decision.
_WEEK_SECONDS = 90.0

_LISTS = (
    ("preempted", "would be stopped"),
    ("spared", "would go on"),
    ("sooner", "starts sooner"),
    ("later", "waits longer"),
)
_COLUMNS = (
    Column("PROJECT", lambda row: row["project"]),
    Column("FAIR-SHARE", lambda row: _effect(row["fair_share_gpus"], formats.gpus), is_number=True),
    Column("HELD", lambda row: _effect(row["held_gpus"], formats.gpus), is_number=True),
    Column("MEAN-WAIT", lambda row: _effect(row["mean_wait_seconds"], formats.duration), is_number=True),
)


def project_what_if_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard project what-if team-a --gpu-quota 6",
        "yard project what-if team-a --gpu-limit none -o json",
        "yard project what-if team-a --gpu-quota 6 --last-week",
    ]
    parser.add_argument("name", metavar="NAME")
    add_share(parser)
    add_flag(parser, "--last-week", about="replay the submissions of the last seven days instead")


def project_what_if(args: Namespace, session: Session) -> None:
    """Print what another quota, weight, limit or priority of a project would change now, or with --last-week would
    have changed in the last week. The server only simulates; the project stays unchanged."""
    changes = require_changes(share_fields(args), "project what-if")
    query = {"last_week": "true"} if args.last_week else None
    if args.last_week:
        session.client.allow(_WEEK_SECONDS)
    found = session.client.post(f"{project_path(args.name)}/what-if", changes, query)
    session.output.object(found, what_if_text(found))


def what_if_text(found: dict[str, Any]) -> str:
    """Return the result of a simulation as text: a table of projects, then the jobs that would start, stop or wait
    differently. `found`: the server's response."""
    cells = [[str(column.cell(row)) for column in _COLUMNS] for row in found["projects"]]
    lines = [plain_table(_COLUMNS, cells).rstrip("\n"), *_replayed(found)]
    for name, words in _LISTS:
        lines += [f"{_job(one)} {words}{_waits(one['wait_seconds'])}" for one in found[name]]
        more = found["counts"][name] - len(found[name])
        lines += [f"{more} more: {words}"] if more else []
    if not any(found["counts"].values()):
        lines.append("no job would start, stop or wait differently")
    return "\n".join(lines)


def _replayed(found: dict[str, Any]) -> list[str]:
    record = found["record"]
    if record is None:
        return []
    followed = formats.duration(found["followed_seconds"])
    return [
        f"{record['jobs']} jobs since {record['since']}, {followed} replayed; {record['left_out']} never ran"
    ]


def _job(one: Row) -> str:
    return f"{one['name']} ({one['project']})" if one["name"] else f"a job of {one['project']}"


def _waits(wait: Row) -> str:
    if wait["before"] is None and wait["after"] is None:
        return ""
    before, after = (
        "-" if wait[side] is None else formats.duration(wait[side]) for side in ("before", "after")
    )
    return f": {before} -> {after}"


def _effect(effect: Row, shown: Any) -> str:
    before, after = ("-" if effect[side] is None else shown(effect[side]) for side in ("before", "after"))
    return str(before) if before == after else f"{before} -> {after}"
