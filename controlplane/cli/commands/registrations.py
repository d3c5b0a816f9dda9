"""`yard dataset register`: create a version from a directory that the control plane can read."""

from __future__ import annotations

import time
from argparse import Namespace

from controlplane.cli import formats
from controlplane.cli.commands.datasets import find_dataset
from controlplane.cli.errors import DONE, FAILED
from controlplane.cli.parsing import Parser, add_flag
from controlplane.cli.session import Session
from controlplane.cli.tables import Row

POLL_SECONDS = 0.5


def register_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset register chest-xray /data/xray -m 'second labelling'"]
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("path", metavar="PATH", help="of the control plane's machine, as an admin allowed it")
    parser.add_argument("-m", "--message", metavar="TEXT", default="", help="what this version is")
    add_flag(parser, "--no-wait", about="do not wait until it is done")


def register(args: Namespace, session: Session) -> int:
    """Create a version from a directory on the control plane's machine. A worker hashes the files there; nothing is
    uploaded. Waits until the version exists, except with --no-wait. Return 1 if the registration failed, else 0."""
    dataset = find_dataset(session, args.name)
    body = {"path": args.path, "message": args.message}
    row = session.client.post(f"datasets/{dataset['id']}/registrations", body)
    said = None
    while row["state"] == "pending" and not args.no_wait:
        time.sleep(POLL_SECONDS)
        row = session.get(f"datasets/{dataset['id']}/registrations/{row['id']}")
        if row["state"] == "pending" and row["reason"] not in (None, said):
            said = row["reason"]
            _show_reason(session, row)
        session.output.status(f"{row['state']}: {formats.transferred(row['progress'])}")
    session.output.status("")
    session.output.object(row, _said(dataset, row))
    return FAILED if row["state"] == "failed" else DONE


def _said(dataset: Row, row: Row) -> str:
    why = f" {row['reason']['message']}" if row["reason"] else ""
    if row["state"] == "failed":
        return f"{row['path']} was not registered:{why}"
    if row["state"] == "pending":
        return f"{row['path']} is being registered in {dataset['name']}"
    return f"{dataset['name']}@{row['version']} is {row['path']}.{why}"


def _show_reason(session: Session, row: Row) -> None:
    """Print why the registration `row` has not succeeded yet. The server tries again by itself."""
    session.output.status("")
    session.output.aside(
        f"{row['path']} is not registered yet; it is tried again: {row['reason']['message']}"
    )
