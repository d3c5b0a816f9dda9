"""Commands that resize elastic jobs: to a number of workers, or up and down by a count."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from controlplane.cli.errors import DONE, FAILED
from controlplane.cli.lookup import find_job
from controlplane.cli.parsing import Parser, add_flag, add_job, add_timeout
from controlplane.cli.session import Session
from controlplane.cli.sse import ChangeListener, patiently

OPEN = ("pending", "running")
# The interval of polls when no event arrives, because the feed may be late or refused.
POLL_SECONDS = 5.0


def scale_arguments(parser: Parser) -> None:
    parser.examples = ["yard scale el1 --workers 5", "yard scale el1 --workers 5 --timeout 10m"]
    add_job(parser)
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="the new number of workers")
    _add_timeout(parser)


def scale(args: Namespace, session: Session) -> int:
    """Request that an elastic job has exactly --workers workers. Return the exit code as `_resize`."""
    job = find_job(session, args.name)
    return _resize(args, session, str(job["id"]), args.workers)


def scaleout_arguments(parser: Parser) -> None:
    parser.examples = ["yard scaleout el1 --count 2"]
    _add_change(parser, "add")


def scaleout(args: Namespace, session: Session) -> int:
    """Request --count workers more than the job has. Return the exit code as `_resize`."""
    job = find_job(session, args.name)
    return _resize(args, session, str(job["id"]), _workers(job) + args.count)


def scalein_arguments(parser: Parser) -> None:
    parser.examples = ["yard scalein el1 --count 2"]
    _add_change(parser, "take away")


def scalein(args: Namespace, session: Session) -> int:
    """Request --count workers fewer than the job has. Return the exit code as `_resize`."""
    job = find_job(session, args.name)
    return _resize(args, session, str(job["id"]), _workers(job) - args.count)


def _add_change(parser: Parser, verb: str) -> None:
    add_job(parser)
    parser.add_argument("--count", type=int, default=1, metavar="K", help=f"workers to {verb} (default 1)")
    _add_timeout(parser)


def _resize(args: Namespace, session: Session, identifier: str, workers: int) -> int:
    """Request that the job with the id `identifier` has `workers` workers. With --wait, wait until the operation has
    ended; with --dry-run change nothing. Return 1 if the operation failed or was rolled back, else 0."""
    body: dict[str, Any] = {"workers": workers}
    if args.timeout is not None:
        body["timeout_seconds"] = args.timeout
    if args.leaving:
        body["leaving"] = args.leaving
    query = {"dry_run": True} if args.dry_run else None
    answer = session.client.post(f"jobs/{identifier}/scale", body, query)
    if args.wait and answer["state"] in OPEN:
        answer = _wait(session, identifier, answer)
    session.output.object(answer, _summary(args.name, answer))
    return DONE if answer["state"] in (*OPEN, "planned", "succeeded") else FAILED


def _wait(session: Session, identifier: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Wait until a scale operation has ended, and return it. `answer`: the operation in REST form; `identifier`: its
    job's id. The server ends an operation at its timeout, so that this returns."""
    changes = ChangeListener(session.client, f"job:{identifier}")
    try:
        while answer["state"] in OPEN:
            changes.wait(POLL_SECONDS)
            page = patiently(lambda: session.get(f"jobs/{identifier}/scale-operations"), session.pause)
            answer = next(row for row in page["results"] if row["id"] == answer["id"])
        return answer
    finally:
        changes.close()


def _summary(name: str, answer: dict[str, Any]) -> str:
    sizes = f"job {name}: from {answer['from']} to {answer['to']} workers"
    why = f": {answer['message']}" if answer["message"] else ""
    if answer["state"] == "planned":
        return f"{sizes} would be possible{why}"
    if answer["generation"] is None and answer["state"] == "succeeded":
        return f"job {name} asks for {answer['to']} workers now, for {answer['from']} before"
    cost = ""
    if answer["pause_seconds"] is not None:
        cost = f", {answer['lost_steps']} steps lost, {answer['repeated_steps']} repeated, pause "
        cost += f"{answer['pause_seconds']:.2f} s"
    return f"{sizes}, {answer['state'].replace('_', ' ')}{cost}{why} (operation {answer['id']})"


def _workers(job: dict[str, Any]) -> int:
    """Return how many workers the job has; before it has any, how many it requests."""
    return int(job["status"].get("workers") or job["workers"])


def _add_timeout(parser: Parser) -> None:
    add_timeout(parser, "roll the change back if it is not complete by then (default 10m)")
    parser.add_argument(
        "--leaving",
        type=int,
        action="append",
        metavar="RANK",
        help="the rank of a worker to remove; repeatable",
    )
    add_flag(parser, "--dry-run", about="show the plan and change nothing")
    add_flag(parser, "--wait", about="until the change is complete or rolled back (then exit code 1)")
