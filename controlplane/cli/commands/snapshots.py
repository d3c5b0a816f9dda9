"""`yard snapshot ...`: take, list, restore and delete snapshots of volumes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

from controlplane.cli import formats
from controlplane.cli.commands.volumes import add_access_mode, add_wait, find_volume, show_made, wait_ready
from controlplane.cli.confirmation import add_yes, delete_confirmed
from controlplane.cli.errors import NOT_FOUND, CliError
from controlplane.cli.lookup import project_rows
from controlplane.cli.parsing import Parser, given
from controlplane.cli.session import Session
from controlplane.cli.sse import patiently
from controlplane.cli.tables import AGE, ID, STATE, Column, Row, trouble_of

# How long to wait until the snapshots for a job that has just ended are written, and between two looks.
WRITTEN_SECONDS, LOOK_SECONDS = 30.0, 0.5
_MEASURES = ("epoch", "step", "accuracy", "loss")


def _metrics(row: Row) -> str:
    found = row["progress"]
    return " ".join(
        f"{name}={formats.measure(found[name])}" for name in _MEASURES if found.get(name) is not None
    )


COLUMNS = (
    Column("NAME", lambda row: row["name"]),
    STATE,
    Column("CAUSE", lambda row: ",".join(row.get("causes") or [row["cause"]])),
    Column("JOB", lambda row: row["job"] or ""),
    Column("PROGRESS", _metrics),
    Column("SIZE", lambda row: formats.binary_size(row["size_bytes"]), is_number=True),
    Column("NEW", lambda row: formats.binary_size(row["new_bytes"]), is_number=True),
    Column("CONSISTENCY", lambda row: row["consistency"] or ""),
    AGE,
    Column("MESSAGE", lambda row: row["status"]["message"], is_wide=True),
    ID,
)


def create_arguments(parser: Parser) -> None:
    parser.examples = ["yard snapshot create data", "yard snapshot create data --wait"]
    parser.add_argument("volume", metavar="VOLUME")
    add_wait(parser)


def create(args: Namespace, session: Session) -> None:
    """Take a snapshot of a volume, while jobs go on writing to it. With --wait, wait until it is ready."""
    volume = find_volume(session, args.volume)
    snapshot = session.client.post("snapshots", {"volume": volume["id"]})
    if args.wait:
        snapshot = wait_ready(session, f"snapshots/{snapshot['id']}", args.timeout)
    state = "is ready" if snapshot["status"]["state"] == "ready" else "is being taken"
    session.output.object(snapshot, f"snapshot {snapshot['name']} {state}")
    session.output.say(f"restore it: yard snapshot restore {snapshot['name']} --to NAME")


def list_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard snapshot list",
        "yard snapshot list --volume data",
        "yard snapshot list --job train1",
    ]
    parser.add_argument("--volume", metavar="VOLUME", help="of this volume")
    parser.add_argument("--job", metavar="JOB", help="of this job")


def list_(args: Namespace, session: Session) -> None:
    """List the snapshots of the project, or of one volume or job, newest first. Those of a volume or job are listed
    once the snapshots for a job that has just ended are written."""
    if args.volume:
        _await_written(session, [args.volume])
    elif args.job:
        _await_written(session, _volumes_of(session, args.job))
    page = project_rows(session, "snapshots", given({"volume": args.volume, "job": args.job}))
    if args.volume and not page["results"]:
        # Raises CliError if there is no such volume. A deleted one may have snapshots.
        find_volume(session, args.volume)
    session.output.objects(page, COLUMNS, trouble_of)


def restore_arguments(parser: Parser) -> None:
    parser.examples = ["yard snapshot restore data@3 --to data-back --wait"]
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="such as data@3")
    parser.add_argument("--to", required=True, metavar="NAME", help="the new volume")
    add_access_mode(parser)
    add_wait(parser)


def restore(args: Namespace, session: Session) -> None:
    """Create a volume with a snapshot's content. The snapshot and the volume that it was taken of stay unchanged. With
    --wait, wait until the snapshot and then the new volume are ready."""
    snapshot = find_snapshot(session, args.snapshot)
    if args.wait and snapshot["status"]["state"] == "pending":
        session.output.say(f"{snapshot['name']} is being taken. Waiting; it continues by itself.")
        snapshot = wait_ready(session, f"snapshots/{snapshot['id']}", args.timeout)
    body = {"name": args.to, **given({"access_mode": args.access_mode})}
    volume = session.client.post(f"snapshots/{snapshot['id']}/restore", body)
    like = f"--like {snapshot['job']} " if snapshot["job"] else "... "
    show_made(args, session, volume, f"run on it: yard submit NAME {like}--pvc {args.to}:PATH")


def delete_arguments(parser: Parser) -> None:
    parser.examples = ["yard snapshot delete data@3 --yes"]
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="such as data@3")
    add_yes(parser)


def delete(args: Namespace, session: Session) -> None:
    """Delete a snapshot. On a terminal the user must confirm, unless --yes is given; elsewhere raise CliError (2)
    without it."""
    path = f"snapshots/{find_snapshot(session, args.snapshot)['id']}"
    delete_confirmed(args, session, "snapshot", args.snapshot, path, done="is being deleted")


def find_snapshot(session: Session, name: str) -> Row:
    """Return the project's snapshot that `name` (VOLUME@NUMBER) means; wait for one that a job which has just ended
    asked for. Raise CliError (3) if there is none or `name` has another form."""
    volume, _, number = name.rpartition("@")
    query: dict[str, Any] = {"project": session.project, "volume": volume, "number": number, "limit": 1}
    is_name = volume and number.isdecimal()
    rows: list[Row] = session.get("snapshots", **query)["results"] if is_name else []
    if is_name and not rows and _await_written(session, [volume]):
        rows = session.get("snapshots", **query)["results"]
    if not rows:
        raise CliError(
            f"there is no snapshot {name!r} in {session.project}", NOT_FOUND, "see: yard snapshot list"
        )
    return rows[0]


def _volumes_of(session: Session, job: str) -> list[str]:
    """Return the names of the volumes that the project's newest job with that name mounts; [] if there is no such job
    any more."""
    path = f"{session.project_path}/jobs"
    rows: list[Row] = session.get(path, name=job, limit=1, fields="volumes")["results"]
    return [mount["volume"] for row in rows for mount in row["volumes"] if "volume" in mount]


def _await_written(session: Session, volumes: Sequence[str]) -> bool:
    """Wait until the snapshots of the volumes (by name) for a job that has just ended are written, at most
    WRITTEN_SECONDS. Return whether there was something to wait for."""
    waited, names = 0.0, ",".join(volumes)
    while volumes and waited < WRITTEN_SECONDS:
        look = partial(session.get, "volumes", project=session.project, name=names, limit=len(volumes))
        found = patiently(look, session.pause)["results"]
        job = next((due for row in found if (due := row.get("snapshots_due_for"))), None)
        if not job:
            break
        if not waited:
            session.output.say(
                f"The snapshots for job {job} are being written. Waiting; it continues by itself."
            )
        session.pause(LOOK_SECONDS)
        waited += LOOK_SECONDS
    return waited > 0
