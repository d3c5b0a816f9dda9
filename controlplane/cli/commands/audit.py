"""`yard audit`: who changed what, for admins."""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime, timedelta

from controlplane.cli import formats
from controlplane.cli.parsing import Parser, duration_seconds, given, positive_number
from controlplane.cli.session import Session
from controlplane.cli.tables import ID, Column, Row

LONGEST_VALUE = 40


def _changes(row: Row) -> str:
    """Return the fields that the verb changed, as text: those that it set, or both values where it replaced one."""
    before, after = row["before"], row["after"]
    fields = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(_change(name, before, after) for name in fields)


def _change(name: str, before: Row, after: Row) -> str:
    old, new = (_short(values[name]) if name in values else "" for values in (before, after))
    return f"{name}: {old} -> {new}" if name in before and name in after else f"{name}: {old}{new}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


COLUMNS = (
    Column("TIME", lambda row: formats.local_time(row["at"])),
    Column("USER", lambda row: row["actor"]),
    Column("VERB", lambda row: row["verb"]),
    Column("OBJECT", lambda row: f"{row['object_type']} {row['object_name']}"),
    Column("CHANGES", _changes),
    Column("ADDRESS", lambda row: row["address"], is_wide=True),
    Column("TOKEN", lambda row: row["token_prefix"], is_wide=True),
    Column("REQUEST", lambda row: row["request_id"], is_wide=True),
    ID,
)


def audit_arguments(parser: Parser) -> None:
    parser.examples = ["yard audit --since 1d", "yard audit --user ben --verb volume.delete -o json"]
    parser.add_argument("--user", metavar="NAME", help="what this user did")
    parser.add_argument("--verb", metavar="VERB", help="only this verb, such as project.edit")
    parser.add_argument("--type", metavar="KIND", help="only on this kind of object, such as project")
    parser.add_argument("--object", metavar="NAME", help="only on this object, by its name or id")
    parser.add_argument(
        "--since", metavar="TIME", type=duration_seconds, help="not older than this, such as 2h"
    )
    parser.add_argument(
        "--limit", metavar="N", type=positive_number, default=100, help="maximum number of entries"
    )


def audit(args: Namespace, session: Session) -> None:
    """Print the audit log, newest first. For admins."""
    query = {"actor": args.user, "verb": args.verb, "object_type": args.type, "object_name": args.object}
    if args.since is not None:
        query["after"] = (datetime.now(UTC) - timedelta(seconds=args.since)).isoformat()
    session.output.objects(session.client.pages("audit", given(query), args.limit), COLUMNS)
