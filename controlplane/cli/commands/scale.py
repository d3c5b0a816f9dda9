"""Resizing elastic jobs: to a number of workers, or out and in by a count."""

from __future__ import annotations

from argparse import Namespace

from controlplane.cli.errors import DONE
from controlplane.cli.lookup import find_job
from controlplane.cli.parsing import Parser, duration_seconds
from controlplane.cli.session import Session


def scale_arguments(parser: Parser) -> None:
    """A name and a number."""
    parser.examples = ["yard scale el1 --workers 5", "yard scale el1 --workers 5 --timeout 10m"]
    _add_name(parser)
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="workers from now on")
    _add_timeout(parser)


def scale(args: Namespace, session: Session) -> int:
    """Ask for exactly this many."""
    job = find_job(session, args.name)
    return _resize(args, session, str(job["id"]), args.workers)


def scaleout_arguments(parser: Parser) -> None:
    """A name and a count."""
    parser.examples = ["yard scaleout el1 --count 2"]
    _add_name(parser)
    parser.add_argument("--count", type=int, default=1, metavar="K", help="workers to add (default 1)")
    _add_timeout(parser)


def scaleout(args: Namespace, session: Session) -> int:
    """Ask for more than there are."""
    job = find_job(session, args.name)
    return _resize(args, session, str(job["id"]), int(job["workers"]) + args.count)


def scalein_arguments(parser: Parser) -> None:
    """A name and a count."""
    parser.examples = ["yard scalein el1 --count 2"]
    _add_name(parser)
    parser.add_argument("--count", type=int, default=1, metavar="K", help="workers to take away (default 1)")
    _add_timeout(parser)


def scalein(args: Namespace, session: Session) -> int:
    """Ask for fewer than there are."""
    job = find_job(session, args.name)
    return _resize(args, session, str(job["id"]), int(job["workers"]) - args.count)


def _resize(args: Namespace, session: Session, identifier: str, workers: int) -> int:
    """Bounds are the server's to check, with the numbers as they are then."""
    body = {"workers": workers}
    if args.timeout is not None:
        body["timeout_seconds"] = args.timeout
    answer = session.client.post(f"jobs/{identifier}/scale", body)
    summary = f"job {args.name} asks for {answer['to']} workers now, for {answer['from']} before"
    session.output.object(answer, summary)
    return DONE


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the job's name, or its id")


def _add_timeout(parser: Parser) -> None:
    parser.add_argument(
        "--timeout",
        type=duration_seconds,
        metavar="TIME",
        help="taken and without effect: a job that waits is scaled at once",
    )
    parser.add_argument("--wait", action="store_true", help="the same")
