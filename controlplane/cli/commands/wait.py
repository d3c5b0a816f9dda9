"""`yard wait`: wait until a job is in a state. Also used by `submit --wait`."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from controlplane.cli.errors import DONE, FAILED, TIMED_OUT, USAGE, CliError
from controlplane.cli.lookup import FINAL_STATES, job_id
from controlplane.cli.parsing import Parser, add_job, add_timeout
from controlplane.cli.session import Session
from controlplane.cli.sse import SILENCE_SECONDS, ChangeListener, patiently

STATES = frozenset({"queued", "starting", "running", "scaling", "suspended", "stopping"}) | FINAL_STATES
_FINISHED = ("finished", "done")
# A job may have left these states before the first poll, on the way to the given one.
_PASSED = {"running": ("starting",), "scaling": ("starting", "running"), "succeeded": ("starting", "running")}


def wait_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard wait hyper1 --timeout 2h",
        "yard wait hyper1 --for running",
        "yard wait hyper1 --for finished",
    ]
    add_job(parser)
    parser.add_argument(
        "--for",
        dest="wanted",
        metavar="STATE[,STATE]",
        default="succeeded",
        help="a job state, several, or `finished` for any final one (default: succeeded); a job that came past"
        " starting or running counts as having reached it; exit code 1 when the job ended otherwise",
    )
    add_timeout(parser, "time limit of the wait (exit code 7)")


def wait(args: Namespace, session: Session) -> int:
    """Wait until a job reaches a state of --for or ends. Return 0 if it reached such a state, 1 if it ended
    otherwise. Raise CliError (7) at the timeout."""
    wanted = wanted_states(args.wanted)
    job = wait_for(session, job_id(session, args.name), wanted, args.timeout)
    state = job["status"]["state"]
    reason = "" if state == "succeeded" else (job["status"].get("reason") or {}).get("message")
    session.output.object(job, f"job {args.name} is {state}" + (f": {reason}" if reason else ""))
    return DONE if is_reached(job, wanted) else FAILED


def wanted_states(text: str) -> frozenset[str]:
    """Return the job states that `text` names, separated by commas; `finished` means all final ones. Raise CliError
    (2) for an unknown state."""
    names = {name.strip().lower().replace("-", "_") for name in text.split(",")}
    unknown = names - STATES - set(_FINISHED)
    if unknown:
        raise CliError(
            f"--for {', '.join(sorted(unknown))}: no such state",
            USAGE,
            f"one of: {', '.join(sorted(STATES))}, finished",
        )
    return frozenset(names & STATES) | (FINAL_STATES if names & set(_FINISHED) else frozenset())


def is_reached(job: dict[str, Any], wanted: frozenset[str]) -> bool:
    """Return whether the job is in a state of `wanted`, or must have been in one: a succeeded job has been
    `running`."""
    state = job["status"]["state"]
    return not wanted.isdisjoint({state, *_PASSED.get(state, ())})


def wait_for(
    session: Session, identifier: str, wanted: frozenset[str], timeout_seconds: float | None = None
) -> dict[str, Any]:
    """Wait until the job with the id `identifier` is in a state of `wanted` or has ended, and return it. Raise
    CliError (7) after `timeout_seconds` (None: no limit)."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    job: dict[str, Any] = session.get(f"jobs/{identifier}")
    if _is_over(job, wanted):
        return job
    # A change before the feed is open is found by the next poll.
    changes = ChangeListener(session.client, f"job:{identifier}")
    try:
        while not _is_over(job, wanted):
            changes.wait(_wait_seconds(deadline, job))
            job = patiently(lambda: session.get(f"jobs/{identifier}"), session.pause)
        return job
    finally:
        changes.close()


def exit_code_of_job(job: dict[str, Any]) -> int:
    """Return the exit code for an ended job: its program's own (at most 255), or 128 + the number of the signal that
    ended it.

    If that is 0 or unknown: 0 for a job that succeeded, 7 for one that reached its time limit, 1 for any other.
    """
    state, code = job["status"]["state"], job["status"].get("exit_code")
    if code:
        return 128 - int(code) if code < 0 else min(int(code), 255)
    return {"succeeded": DONE, "timed_out": TIMED_OUT}.get(state, FAILED)


def _is_over(job: dict[str, Any], wanted: frozenset[str]) -> bool:
    return is_reached(job, wanted) or job["status"]["state"] in FINAL_STATES


def _wait_seconds(deadline: float | None, job: dict[str, Any]) -> float:
    if deadline is None:
        return SILENCE_SECONDS
    left = deadline - time.monotonic()
    if left <= 0:
        raise CliError(f"job {job['name']} is still {job['status']['state']}", TIMED_OUT)
    return min(left, SILENCE_SECONDS)
