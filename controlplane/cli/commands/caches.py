"""`yard dataset cache` and related commands: copies of versions close to the GPUs."""

from __future__ import annotations

import time
from argparse import Namespace
from functools import partial
from typing import Any

from controlplane.cli import formats
from controlplane.cli.commands.datasets import find_dataset, find_version, version_name
from controlplane.cli.confirmation import add_needless_yes
from controlplane.cli.errors import DONE, FAILED, NOT_FOUND, TIMED_OUT, CliError
from controlplane.cli.lookup import project_rows
from controlplane.cli.parsing import Parser, add_flag, add_timeout
from controlplane.cli.session import ROWS_MOST, Session
from controlplane.cli.sse import SILENCE_SECONDS, ChangeListener, patiently
from controlplane.cli.tables import ID, Column, Row

UNFINISHED = ("queued", "filling")


def _name(made: Row) -> str:
    return version_name({**made, "number": made["version"]})


def _trouble(row: Row) -> str:
    """Return a line about why a cache failed or waits, "" without a reason. For Output.objects."""
    why = row["reason"]
    return f"{_name(row)} at {row['location']} {row['state']}: {why['message']}" if why["code"] else ""


def _state(row: Row) -> str:
    progress = row["progress"]
    if row["state"] != "filling" or not progress["total_bytes"]:
        return str(row["state"])
    return f"filling {100 * progress['bytes'] // progress['total_bytes']} %"


CACHE_COLUMNS = (
    Column("DATASET", _name),
    Column("PROJECT", lambda row: row["project"]),
    Column("LOCATION", lambda row: row["location"]),
    Column("STATE", _state),
    Column("SIZE", lambda row: formats.size(row["progress"]["total_bytes"]), is_number=True),
    Column("CHARGED", lambda row: formats.size(row["charged_bytes"]), is_number=True),
    Column("SHARING", lambda row: row["sharing"].replace("_", " "), is_wide=True),
    Column("HITS", lambda row: row["hits"], is_number=True),
    Column("PINNED", lambda row: "yes" if row["is_pinned"] else "no"),
    Column("USED", lambda row: formats.age(row["used_at"])),
    Column("MESSAGE", lambda row: row["reason"]["message"], is_wide=True),
    ID,
)


def cache_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset cache chest-xray@3", "yard dataset cache chest-xray --wait"]
    _add_version(parser)
    add_flag(parser, "--wait", about="wait until it is ready; exit 1 if it fails")
    add_timeout(parser, "time limit of --wait; exit code 7 when it passes")


def cache(args: Namespace, session: Session) -> int:
    """Have a version cached near the GPUs, so that jobs need not wait for its content. With --wait, wait until that
    is done. Return 1 if it failed, else 0."""
    version = find_version(session, args.version)
    body = {"version_id": version["id"], "location": args.location}
    made = session.client.post("caches", {name: value for name, value in body.items() if value})
    if args.wait and made["state"] in UNFINISHED:
        made = _wait(session, made, args.timeout)
    session.output.object(made, _said(made))
    return FAILED if made["state"] == "failed" else DONE


def uncache_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset uncache chest-xray@3"]
    _add_version(parser)
    add_needless_yes(parser)


def uncache(args: Namespace, session: Session) -> None:
    """Remove the caches of a version, or cancel their filling. The version itself stays."""
    for each in _find(session, args):
        removed = session.client.delete(f"caches/{each['id']}")
        session.output.object(removed, f"{_name(each)} is being removed from {each['location']}")


def pin_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset pin chest-xray@golden"]
    _add_version(parser)


def pin(args: Namespace, session: Session) -> None:
    """Protect a version's caches from removal by age and for lack of space."""
    _post_each(args, session, "pin", "is pinned")


def unpin_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset unpin chest-xray@golden"]
    _add_version(parser)


def unpin(args: Namespace, session: Session) -> None:
    """Allow that the caches of a version are again removed by age and for lack of space."""
    _post_each(args, session, "unpin", "is no longer pinned")


def _post_each(args: Namespace, session: Session, verb: str, result: str) -> None:
    for each in _find(session, args):
        changed = session.client.post(f"caches/{each['id']}/{verb}", {})
        session.output.object(changed, f"{_name(each)} {result} at {each['location']}")


def caches_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset caches", "yard dataset caches chest-xray"]
    parser.add_argument("name", metavar="NAME", nargs="?", help="of this dataset; default: of the project's")
    add_flag(parser, "-A", "--all-projects", about="of every dataset that you may see")


def caches(args: Namespace, session: Session) -> None:
    """List caches with their state and size: of one dataset, of the project, or with -A of all visible datasets."""
    session.output.objects(_listed(args, session), CACHE_COLUMNS, _trouble)


def _listed(args: Namespace, session: Session) -> dict[str, Any]:
    if args.name:
        dataset = find_dataset(session, args.name)
        query = {"project": dataset["project"], "dataset": dataset["name"]}
        return session.client.pages("caches", query, ROWS_MOST)
    return project_rows(session, "caches", {}, all_projects=args.all_projects)


def _add_version(parser: Parser) -> None:
    parser.add_argument("version", metavar="NAME[@VERSION[/SUBSET]]")
    parser.add_argument("--location", metavar="L", help="see: yard cache-location list")


def _find(session: Session, args: Namespace) -> list[Row]:
    version = find_version(session, args.version)
    query: Row = {"version_id": version["id"]}
    if args.location:
        query["location"] = args.location
    rows: list[Row] = session.get("caches", **query)["results"]
    if not rows:
        raise CliError(f"{args.version} is not cached", NOT_FOUND, "see: yard dataset caches")
    return rows


def _wait(session: Session, made: Row, timeout_seconds: float | None) -> Row:
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    changes = ChangeListener(session.client, f"dataset:{made['dataset_id']}")
    try:
        while made["state"] in UNFINISHED:
            left = SILENCE_SECONDS if deadline is None else min(SILENCE_SECONDS, deadline - time.monotonic())
            if left <= 0:
                raise CliError(f"{_name(made)} is still {made['state']}", TIMED_OUT)
            changes.wait(left)
            made = patiently(partial(session.get, f"caches/{made['id']}"), session.pause)
            session.output.status(_progress(made))
        return made
    finally:
        changes.close()
        session.output.status("")


def _progress(made: Row) -> str:
    at = made["progress"]
    left = "" if at["eta_seconds"] is None else f", {at['eta_seconds']} s left"
    return f"{made['state']}: {formats.transferred(at)}, {formats.size(at['bytes_per_second'])}/s{left}"


def _said(made: Row) -> str:
    if made["state"] == "failed":
        return f"{_name(made)} could not be cached at {made['location']}: {made['reason']['message']}"
    words: dict[str, Any] = {"ready": "is at", "queued": "will be cached at", "filling": "is being cached at"}
    return f"{_name(made)} {words.get(made['state'], made['state'] + ' at')} {made['location']}"
