"""`yard artifact ...`: the output directories that jobs keep."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from controlplane.cli import formats
from controlplane.cli.commands.datasets import FILE_COLUMNS
from controlplane.cli.confirmation import add_yes, delete_confirmed
from controlplane.cli.errors import CONFLICT, NOT_FOUND, USAGE, CliError
from controlplane.cli.lookup import FINAL_STATES, project_rows
from controlplane.cli.parsing import Parser, directory_path
from controlplane.cli.session import Session
from controlplane.cli.sse import patiently
from controlplane.cli.tables import AGE, ID, STATE, Column, Row

SIZE = Column("SIZE", lambda row: formats.binary_size(row["size_bytes"]), is_number=True)
COLUMNS = (
    Column("JOB", lambda row: row["job"]),
    Column("NAME", lambda row: row["name"]),
    STATE,
    Column("FILES", lambda row: "" if row["files"] is None else f"{row['files']:,}", is_number=True),
    SIZE,
    AGE,
    Column("MESSAGE", lambda row: row["status"]["message"]),
    Column("MANIFEST", lambda row: row["manifest"] or "", is_wide=True),
    ID,
)
# Sizes as in the list of artifacts.
FILES_OF_ARTIFACT = tuple(SIZE if column.heading == SIZE.heading else column for column in FILE_COLUMNS)
_ARTIFACT = "JOB/NAME"
_COMING = ("waiting", "keeping")
KEEP_SECONDS = 120.0


def list_arguments(parser: Parser) -> None:
    parser.examples = ["yard artifact list", "yard artifact list --job train1"]
    parser.add_argument("--job", metavar="JOB", help="of jobs with this name")


def list_(args: Namespace, session: Session) -> None:
    """List artifacts, newest first."""
    query: dict[str, Any] = {"job": args.job} if args.job else {}
    session.output.objects(project_rows(session, "artifacts", query), COLUMNS)


def files_arguments(parser: Parser) -> None:
    parser.examples = ["yard artifact files train1/model"]
    parser.add_argument("artifact", metavar=_ARTIFACT)
    parser.add_argument("directory", metavar="PATH", nargs="?", default="")


def files(args: Namespace, session: Session) -> None:
    """List a directory of an artifact, at most 1,000 entries."""
    found = kept_artifact(session, args.artifact)
    directory = args.directory.strip("/") or None
    page = session.get(f"artifacts/{found['id']}/files", directory=directory, limit=1000)
    session.output.objects(page, FILES_OF_ARTIFACT)


def download_arguments(parser: Parser) -> None:
    parser.examples = ["yard artifact download train1/model ./model"]
    parser.add_argument("artifact", metavar=_ARTIFACT)
    parser.add_argument("directory", type=directory_path, metavar="DIR")


def download(args: Namespace, session: Session) -> None:
    """Write an artifact's files into a directory and verify each. A repeat continues an interrupted download. Raise
    CliError (5) if the artifact is not stored."""
    from controlplane.cli.dataset_sync import fetch_tree

    found, target = stored_artifact(session, args.artifact), Path(args.directory)
    written = fetch_tree(session, f"artifacts/{found['id']}", found["manifest"], target)
    session.output.object(
        found,
        f"{args.artifact}: {written:,} of {formats.counted_files(found['files'])} written to {target}",
    )


def delete_arguments(parser: Parser) -> None:
    parser.examples = ["yard artifact delete train1/model --yes"]
    parser.add_argument("artifact", metavar=_ARTIFACT)
    add_yes(parser)


def delete(args: Namespace, session: Session) -> None:
    """Delete an artifact. On a terminal the user must confirm, unless --yes is given; elsewhere raise CliError (2)
    without it."""
    path = f"artifacts/{find_artifact(session, args.artifact)['id']}"
    delete_confirmed(args, session, "artifact", args.artifact, path)


def stored_artifact(session: Session, text: str) -> Row:
    """Return the artifact that `text`, JOB/NAME, names, after the wait of `kept_artifact`. Raise CliError as that, and
    (5) if the artifact is not stored."""
    found = kept_artifact(session, text)
    if found["manifest"] is None:
        status = found["status"]
        words = f"{text} is {status['state']}. {status['message']}".strip()
        raise CliError(words, CONFLICT, "see: yard artifact list")
    return found


def kept_artifact(session: Session, text: str) -> Row:
    """Return the artifact that `text`, JOB/NAME, names. If its job has ended but it is not stored yet, wait for that,
    at most KEEP_SECONDS; `status` shows whether it is stored. Raise CliError as `find_artifact`."""
    found, waited = find_artifact(session, text), 0.0
    while found["status"]["state"] in _COMING and waited < KEEP_SECONDS:
        if not waited:
            if session.get(f"jobs/{found['job_id']}")["status"]["state"] not in FINAL_STATES:
                break
            session.output.say(f"{text} is being kept. Waiting; it continues by itself.")
        session.pause(1.0)
        waited += 1.0
        found = patiently(partial(session.get, f"artifacts/{found['id']}"), session.pause)
    return found


def find_artifact(session: Session, text: str) -> Row:
    """Return the artifact that `text`, JOB/NAME, names: of the jobs with this name in the project, that of the newest
    one which has it. Raise CliError if there is none or the text has another form."""
    job, slash, name = text.partition("/")
    if not (job and slash and name):
        raise CliError(f"{text!r} is not JOB/NAME", USAGE, "see: yard artifact list")
    query: dict[str, Any] = {"project": session.project, "job": job, "name": name, "limit": 1}
    rows: list[Row] = session.get("artifacts", **query)["results"]
    if not rows:
        hint = "see: yard artifact list"
        raise CliError(f"there is no artifact {text!r} in {session.project}", NOT_FOUND, hint)
    return rows[0]
