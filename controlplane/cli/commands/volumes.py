"""`yard volume ...`: directories to which jobs write and that outlive them."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from contextlib import suppress
from functools import partial
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote

from controlplane.cli import formats
from controlplane.cli.client import BEING_READ, BUSY_SECONDS
from controlplane.cli.confirmation import add_yes, delete_confirmed
from controlplane.cli.errors import FAILED, NOT_FOUND, TIMED_OUT, USAGE, ApiError, CliError
from controlplane.cli.lookup import project_rows, require_name
from controlplane.cli.parsing import Parser, add_flag, add_timeout, duration_seconds, given, positive_number
from controlplane.cli.session import Session
from controlplane.cli.sse import patiently
from controlplane.cli.tables import AGE, ID, STATE, Column, Row, trouble_of

POLL_SECONDS = 0.5
SHORTEST_PERIOD_SECONDS = 300
ACCESS_MODES = ("ReadWriteOnce", "ReadWriteMany")
_SIZE_ENFORCED = {
    True: "yes",
    False: "no: jobs can write beyond it",
    None: "by the cluster's storage driver, if it has limits",
}


def _class_and_tier(volume: Row) -> str:
    tier = volume["service_tier"]
    return f"{volume['storage_class']}, tier {tier}" if tier else str(volume["storage_class"])


def used_text(volume: Row) -> str:
    """Return how much of a volume's size is used, such as `4.2 MiB of 10 GiB`. The used size is `?` if it is unknown,
    and followed by `or more` if only a part was measured."""
    more = " or more" if volume["is_measured_in_part"] else ""
    return f"{formats.binary_size(volume['used_bytes'])}{more} of {formats.binary_size(volume['size_bytes'])}"


VOLUME_COLUMNS = (
    Column("NAME", lambda row: row["name"]),
    Column("PROJECT", lambda row: row["project"]),
    STATE,
    Column("USED", used_text),
    Column("ACCESS", lambda row: row["access_mode"]),
    Column("CLASS", lambda row: row["storage_class"]),
    Column("JOBS", lambda row: ", ".join(job["name"] for job in row["jobs"])),
    AGE,
    Column("MESSAGE", lambda row: row["status"]["message"], is_wide=True),
    Column("TIER", lambda row: row["service_tier"], is_wide=True),
    ID,
)
FILE_COLUMNS = (
    Column("NAME", lambda row: row["name"] + ("/" if row["kind"] == "directory" else "")),
    Column("KIND", lambda row: row["kind"]),
    Column(
        "SIZE",
        lambda row: formats.binary_size(row["size_bytes"]) if row["kind"] == "file" else "",
        is_number=True,
    ),
    Column("CHANGED", lambda row: formats.age(row["modified_at"])),
)


def create_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard volume create data --size 100Gi",
        "yard volume create shared --size 1Ti --access-mode ReadWriteMany --wait",
    ]
    _named(parser)
    parser.add_argument("--size", required=True, metavar="SIZE", help="for example 100Gi")
    parser.add_argument("--class", dest="storage_class", metavar="CLASS", help="storage class")
    parser.add_argument("--access-mode", choices=ACCESS_MODES, help="one job at a time (default), or many")
    parser.add_argument("--tier", metavar="TIER", help="service tier of the class")
    add_wait(parser)


def create(args: Namespace, session: Session) -> None:
    """Create an empty volume in the project. With --wait, wait until it is ready."""
    body = {
        "project": session.project,
        "name": args.name,
        "size": args.size,
        "storage_class": args.storage_class,
        "access_mode": args.access_mode,
        "service_tier": args.tier,
    }
    given = {key: value for key, value in body.items() if value is not None}
    volume = session.client.post("volumes", given)
    show_made(args, session, volume, f"mount it: yard submit ... --pvc {args.name}:/mnt")


def list_arguments(parser: Parser) -> None:
    parser.examples = ["yard volume list", "yard volume list -A"]
    add_flag(parser, "-A", "--all-projects", about="of every project")


def list_(args: Namespace, session: Session) -> None:
    """List the volumes of the project, or with -A of all projects that the user may view."""
    page = project_rows(session, "volumes", {}, all_projects=args.all_projects)
    session.output.objects(page, VOLUME_COLUMNS, trouble_of)


def describe_arguments(parser: Parser) -> None:
    parser.examples = ["yard volume describe data"]
    _named(parser)


def describe(args: Namespace, session: Session) -> None:
    """Print a volume, and the unfinished jobs that mount it."""
    volume = find_volume(session, args.name)
    if session.output.is_data:
        session.output.data(volume)
        return
    status = volume["status"]
    session.output.line(
        formats.fields(
            [
                ("Name", volume["name"]),
                ("Project", volume["project"]),
                ("State", f"{status['state']}. {status['message']}".strip(". ") or status["state"]),
                ("Used", _measured(volume)),
                ("Files", volume["files"]),
                ("Access mode", volume["access_mode"]),
                ("Storage class", _class_and_tier(volume)),
                ("Made of", (volume["origin"] or {}).get("name")),
                ("Size enforced", _SIZE_ENFORCED[volume["is_size_enforced"]]),
                ("Snapshots", _snapshot_rules(volume)),
                ("Created", f"{formats.local_time(volume['created_at'])} by {volume['created_by']}"),
            ]
        )
    )
    for job in volume["jobs"]:
        session.output.line(f"mounted by {job['name']} ({job['state']}) at {job['mount_path']}")


def _measured(volume: Row) -> str:
    """Return what a volume holds and when that was measured: it may have been before its last job."""
    when = f", measured {formats.ago(volume['measured_at'])}" if volume["measured_at"] else ""
    return f"{used_text(volume)}{when}"


def files_arguments(parser: Parser) -> None:
    parser.examples = ["yard volume files data", "yard volume files data checkpoints"]
    _named(parser)
    parser.add_argument("directory", metavar="PATH", nargs="?", default="")


def files(args: Namespace, session: Session) -> None:
    """List one directory of a volume, all its entries."""
    volume = find_volume(session, args.name)
    rows: list[Row] = []
    page: Row = {"has_more": True}
    while page["has_more"]:
        after = rows[-1]["name"] if rows else None
        page = session.get(
            f"volumes/{volume['id']}/files", directory=args.directory or None, after=after, limit=1000
        )
        rows += page["results"]
    session.output.objects({**page, "results": rows}, FILE_COLUMNS)


def get_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard volume get data checkpoints/last.pt ./last.pt",
        "yard volume get data notes.txt -",
    ]
    _named(parser)
    parser.add_argument("path", metavar="PATH", help="the file in the volume")
    parser.add_argument(
        "target", metavar="FILE", nargs="?", help="default: its name, here; - for standard output"
    )


def get(args: Namespace, session: Session) -> None:
    """Download a file of a volume, to the file `target` or with "-" to standard output. Raise CliError if it cannot
    be written or arrives incomplete."""
    volume = find_volume(session, args.name)
    target = args.target or args.path.rstrip("/").rpartition("/")[2]
    path = f"volumes/{volume['id']}/content?path={quote(args.path, safe='')}"
    with _opened(session, path) as body:
        if target == "-":
            shutil.copyfileobj(body, sys.stdout.buffer)
            return
        _write(body, target, args.path)
    session.output.say(f"{args.path} written to {target}")


def _write(body: HTTPResponse, target: str, path: str) -> None:
    part = Path(f"{target}.part")
    try:
        with open(part, "wb") as file:
            shutil.copyfileobj(body, file)
            if file.tell() != int(body.headers["Content-Length"]):
                raise CliError(f"{path} arrived incomplete", FAILED, "try again")
        part.replace(target)
    except OSError as error:
        raise CliError(f"{error.filename or part} cannot be written: {error.strerror}", FAILED) from error
    finally:
        # After an error or Ctrl-C.
        with suppress(OSError):
            part.unlink()


def _opened(session: Session, path: str) -> HTTPResponse:
    """Return the response with a file's content. On Kubernetes a pod must first read the file: this prints so and
    tries again for up to BUSY_SECONDS. Raise ApiError if the server refuses."""
    waited = 0.0
    while True:
        try:
            return session.client.open(path, {"Accept": "application/octet-stream, application/json"})
        except ApiError as error:
            if error.code != BEING_READ or waited >= BUSY_SECONDS:
                raise
            if not waited:
                session.output.say(f"{error.problem.get('detail', error)} Waiting; it continues by itself.")
        session.pause(1.0)
        waited += 1.0


def resize_arguments(parser: Parser) -> None:
    parser.examples = ["yard volume resize data --size 200Gi"]
    _named(parser)
    parser.add_argument("--size", required=True, metavar="SIZE")


def resize(args: Namespace, session: Session) -> None:
    """Request another size of a volume. Print whether the volume has that size already."""
    before = find_volume(session, args.name)
    volume = session.client.post(f"volumes/{before['id']}/resize", {"size": args.size})
    # Storage that applies the size itself does so after the answer.
    is_pending = volume["is_size_enforced"] or volume["size_bytes"] == before["size_bytes"]
    state = "is being resized; it has" if is_pending else "has"
    size = formats.binary_size(volume["size_bytes"])
    session.output.object(volume, f"volume {args.name} {state} {size}")


def set_access_mode_arguments(parser: Parser) -> None:
    parser.examples = ["yard volume access-mode data ReadWriteMany"]
    _named(parser)
    parser.add_argument("access_mode", choices=ACCESS_MODES)


def set_access_mode(args: Namespace, session: Session) -> None:
    """Set whether only one job or many may mount the volume at the same time."""
    volume = _post(session, args.name, "access-mode", {"access_mode": args.access_mode})
    session.output.object(volume, f"volume {args.name} is {volume['access_mode']}")


def tier_arguments(parser: Parser) -> None:
    parser.examples = ["yard volume tier data premium"]
    _named(parser)
    parser.add_argument("tier", metavar="TIER")


def tier(args: Namespace, session: Session) -> None:
    """Request another service tier for a volume, which stays mounted. Print whether the volume has the tier already."""
    volume = _post(session, args.name, "service-tier", {"service_tier": args.tier})
    is_done = volume["service_tier"] == args.tier
    state = "has the tier" if is_done else "is being moved to the tier"
    session.output.object(volume, f"volume {args.name} {state} {args.tier}")


def keep_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard volume keep data --last 5",
        "yard volume keep data --days 30",
        "yard volume keep data",
    ]
    _named(parser)
    parser.add_argument("--last", type=positive_number, metavar="N", help="the newest N")
    parser.add_argument("--days", type=positive_number, metavar="N", help="those of the last N days")


def keep(args: Namespace, session: Session) -> None:
    """Limit by number or age which automatic snapshots of a volume are kept. A limit that is not given is removed.
    Snapshots that users take are always kept."""
    volume = find_volume(session, args.name)
    rules = {"keep_last": args.last, "keep_days": args.days}
    changed = session.client.patch(f"volumes/{volume['id']}", rules)
    session.output.object(changed, f"volume {args.name} keeps {_kept(changed)}")


def _snapshot_rules(volume: Row) -> str:
    """Return when snapshots are taken by the clock and which are kept: `every 5 min, the next at ...; keeps the
    newest 2, ...`; "" if there is no rule."""
    minutes, is_limited = volume["snapshot_minutes"], volume["keep_last"] or volume["keep_days"]
    # Absent from servers of earlier versions.
    moment = formats.local_time(volume.get("next_snapshot_at"))
    clock = f"every {minutes} min" + (f", the next at {moment}" if moment else "") if minutes else ""
    rules = (clock, f"keeps {_kept(volume)}" if is_limited else "")
    return "; ".join(rule for rule in rules if rule)


def _kept(volume: Row) -> str:
    last, days = volume["keep_last"], volume["keep_days"]
    if last is None and days is None:
        return "all snapshots"
    newest = "" if last is None else f"the newest {last:,}"
    recent = "" if days is None else f"those of the last {days:,} days"
    return " of ".join(part for part in (newest, recent) if part) + ", and all that were requested"


def schedule_arguments(parser: Parser) -> None:
    parser.examples = ["yard volume schedule data --every 1h --last 24", "yard volume schedule data --off"]
    _named(parser)
    parser.add_argument("--every", type=duration_seconds, metavar="TIME", help="from 5m on")
    parser.add_argument(
        "--last", type=positive_number, metavar="N", help="keep the newest N of schedule and events"
    )
    parser.add_argument("--days", type=positive_number, metavar="N", help="keep those of the last N days")
    add_flag(parser, "--off", about="end the schedule")


def schedule(args: Namespace, session: Session) -> None:
    """Set or end the schedule of a volume's snapshots; limits that are not given stay unchanged. Raise CliError (2)
    for a period below SHORTEST_PERIOD_SECONDS, or unless exactly one of --every and --off is given."""
    if (args.every is not None) == args.off:
        raise CliError("volume schedule: give --every TIME or --off", USAGE, "see: yard help volume schedule")
    if args.every is not None and args.every < SHORTEST_PERIOD_SECONDS:
        raise CliError("volume schedule: --every is from 5m on", USAGE)
    changes = given({"keep_last": args.last, "keep_days": args.days})
    changes["snapshot_minutes"] = None if args.off else args.every // 60
    volume = session.client.patch(f"volumes/{find_volume(session, args.name)['id']}", changes)
    said = "no scheduled snapshots" if args.off else f"a snapshot every {changes['snapshot_minutes']} min"
    session.output.object(volume, f"volume {args.name}: {said}")


def clone_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard volume clone data data-2 --wait",
        "yard volume clone data shared --access-mode ReadWriteMany",
    ]
    _named(parser)
    parser.add_argument("copy", metavar="NEW")
    add_access_mode(parser)
    add_wait(parser)


def clone(args: Namespace, session: Session) -> None:
    """Create a volume with a copy of another volume's content. With --wait, wait until it is ready."""
    body = {"name": args.copy, **given({"access_mode": args.access_mode})}
    volume = _post(session, args.name, "clone", body)
    show_made(args, session, volume, f"mount it: yard submit ... --pvc {args.copy}:/mnt")


def add_access_mode(parser: Parser) -> None:
    """Add --access-mode to a command that copies a volume."""
    parser.add_argument("--access-mode", choices=ACCESS_MODES, help="of the new volume (default: as before)")


def delete_arguments(parser: Parser) -> None:
    parser.examples = ["yard volume delete data --yes"]
    _named(parser)
    add_yes(parser)


def delete(args: Namespace, session: Session) -> None:
    """Delete a volume with its content, but not its snapshots. On a terminal the user must confirm, unless --yes is
    given; elsewhere raise CliError (2) without it."""
    volume = find_volume(session, args.name)
    lost = f"{args.name} holds {formats.binary_size(volume['used_bytes'])}; all of it would be deleted"
    path, done = f"volumes/{volume['id']}", "is being deleted"
    delete_confirmed(args, session, "volume", args.name, path, lost=lost, done=done)


def find_volume(session: Session, name: str) -> Row:
    """Return the project's volume with that name. Raise CliError if there is none (3) or the name is empty (2)."""
    require_name(name, "volume")
    rows: list[Row] = session.get("volumes", name=name, project=session.project, limit=1)["results"]
    if not rows:
        raise CliError(
            f"there is no volume {name!r} in {session.project}", NOT_FOUND, "see: yard volume list"
        )
    return rows[0]


def wait_ready(session: Session, path: str, timeout_seconds: int | None) -> Row:
    """Wait until a volume or snapshot is ready, and return it; print what blocks it. `path`: its path in the API. Raise
    CliError if it fails or is being deleted (1), or after `timeout_seconds` (7; None: no limit)."""
    waited, said = 0.0, ""
    while True:
        found: Row = patiently(partial(session.get, path), session.pause)
        status = found["status"]
        if status["state"] == "ready":
            return found
        if status["state"] in ("failed", "deleting"):
            raise CliError(f"{found['name']} {status['state']}: {status['message']}", FAILED)
        if timeout_seconds is not None and waited >= timeout_seconds:
            raise CliError(f"{found['name']} is still {status['state']} after {timeout_seconds} s", TIMED_OUT)
        if status["message"] and status["message"] != said:
            said = status["message"]
            session.output.say(
                f"{found['name']} is {status['state']}: {said} Waiting; it continues by itself."
            )
        session.pause(POLL_SECONDS)
        waited += POLL_SECONDS


def show_made(args: Namespace, session: Session, volume: Row, hint: str) -> None:
    """Print a new volume, then the `hint`. With --wait, wait until the volume is ready; raises as `wait_ready`."""
    if args.wait:
        volume = wait_ready(session, f"volumes/{volume['id']}", args.timeout)
    state = "is ready" if volume["status"]["state"] == "ready" else "is being made"
    session.output.object(volume, f"volume {volume['name']} {state}")
    session.output.say(hint)


def _post(session: Session, name: str, verb: str, body: dict[str, Any]) -> Row:
    volume = find_volume(session, name)
    changed: Row = session.client.post(f"volumes/{volume['id']}/{verb}", body)
    return changed


def _named(parser: Parser) -> None:
    parser.add_argument("name", metavar="VOLUME")


def add_wait(parser: Parser) -> None:
    """Declare `--wait` and `--timeout`."""
    add_flag(parser, "--wait", about="until it is ready")
    add_timeout(parser, "time limit of --wait; exit code 7 when it passes")
