"""`yard submit --file`: submit many jobs from one file, in batches that are each accepted as a whole or not
at all."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from typing import Any

from controlplane.cli.commands.submit import submitted_text
from controlplane.cli.errors import DONE, TIMED_OUT, UNREACHABLE, USAGE, ApiError, CliError
from controlplane.cli.files import parse_yaml, read_text
from controlplane.cli.session import Session

Body = dict[str, Any]

# The server accepts bodies up to 1 MiB, so a batch must stay below that.
BATCH_JOBS, BATCH_BYTES = 100, 1_000_000
_PLACE = re.compile(r"\A/jobs/(\d+)")


def submit_file(args: Namespace, session: Session, shared: Body) -> int:
    """Submit every job of the file --file, in batches; with --dry-run only have them checked. `shared`: fields for jobs
    that do not set them. Print which jobs were accepted, also if a later batch is refused. Raise CliError (2) for
    duplicate names, ApiError for a refused batch."""
    bodies = [{**shared, **body} for body in read_jobs(args.file)]
    names = Counter(body["name"] for body in bodies if isinstance(body.get("name"), str))
    if twice := [name for name, count in names.items() if count > 1]:
        raise CliError(f"{args.file} has more than one job named {', '.join(twice[:5])}", USAGE)
    done: list[Body] = []
    try:
        for batch in batches(bodies):
            done += _send(args, session, batch, len(done))
            if not (args.dry_run or session.output.is_data):
                session.output.line("\n".join(map(submitted_text, done[-len(batch) :])))
    finally:
        # Also when the server refused a batch or after Ctrl-C: batches accepted before are submitted.
        _report(args, session, done, len(bodies))
    return DONE


def read_jobs(path: str) -> list[Body]:
    """Return the jobs of a file: a JSON array, JSON objects one after another, or a YAML list. `path`: "-" for
    standard input. Raise CliError (2) if the file cannot be read or holds anything else."""
    text = read_text(path)
    try:
        jobs = _parsed(text)
    except (ValueError, RecursionError) as error:
        raise CliError(f"{path} cannot be read: {error}", USAGE) from error
    if not isinstance(jobs, list) or not jobs or not all(isinstance(job, dict) for job in jobs):
        hint = "write a JSON array, one JSON object a line, or a YAML list"
        raise CliError(f"{path} is not a list of jobs", USAGE, hint)
    return jobs


def batches(bodies: list[Body]) -> Iterator[list[Body]]:
    """Yield the jobs `bodies` in batches of at most BATCH_JOBS jobs and about BATCH_BYTES bytes, in their order.
    A job that is larger is a batch by itself."""
    batch: list[Body] = []
    size = 0
    for body in bodies:
        length = len(json.dumps(body))
        if batch and (len(batch) == BATCH_JOBS or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += length
    yield batch


def _parsed(text: str) -> Any:
    first = text.lstrip()[:1]
    if first == "[":
        return json.loads(text)
    if first == "{":
        return list(_objects(text))
    listed = parse_yaml(text, "jobs in YAML", "or give them as JSON")
    # YAML parses dates; keep them as text.
    return json.loads(json.dumps(listed, default=str, allow_nan=False))


def _objects(text: str) -> Iterator[Any]:
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        if text[position].isspace():
            position += 1
        else:
            value, position = decoder.raw_decode(text, position)
            yield value


def _send(args: Namespace, session: Session, batch: list[Body], before: int) -> list[Body]:
    query = {"dry_run": True} if args.dry_run else None
    key = args.idempotency_key and f"{args.idempotency_key}-{_digest(batch)}"
    try:
        answer = session.client.post(f"{session.project_path}/jobs/batch", {"jobs": batch}, query, key=key)
    except ApiError as refusal:
        named = ApiError(refusal.status, _with_names(refusal.problem, batch, before))
        raise _in_doubt(named, len(batch)) from refusal
    except CliError as lost:
        raise _in_doubt(lost, len(batch)) from lost
    results: list[Body] = answer["results"]
    return results


def _in_doubt(error: CliError, count: int) -> CliError:
    """Return the error. If the server did not answer, the hint is added that the next `count` jobs may have been
    accepted."""
    if error.exit_code in (UNREACHABLE, TIMED_OUT):
        error.hint = f"the next {count} may have been submitted; check with: yard list jobs"
    return error


def _digest(batch: list[Body]) -> str:
    """Return a hash of the batch, for its idempotency key: a batch that was accepted is not submitted again when the
    command is repeated, but a batch with corrected jobs is."""
    import hashlib

    return hashlib.sha256(json.dumps(batch, sort_keys=True).encode()).hexdigest()[:16]


def _with_names(problem: dict[str, Any], batch: list[Body], before: int) -> dict[str, Any]:
    """Return the server's problem document with jobs by name: `/hyper3/gpus` for `/jobs/3/gpus`. A job without a name
    is named by its number in the file. `before`: the number of jobs in earlier batches."""

    def named(place: re.Match[str]) -> str:
        number = int(place[1])
        return f"/{batch[number].get('name') or f'job {before + number + 1}'}"

    errors = problem.get("errors") or []
    return problem | {
        "errors": [error | {"pointer": _PLACE.sub(named, error["pointer"])} for error in errors]
    }


def _report(args: Namespace, session: Session, done: list[Body], count: int) -> None:
    output = session.output
    if done and output.is_data:
        output.data({"results": done})
    for warning in dict.fromkeys(text for job in done for text in job.get("warnings") or []):
        output.say(f"warning: {warning}")
    counted = f"{len(done)} of {count} jobs"
    if not args.dry_run:
        output.say(f"{counted} were submitted to {session.project}")
    elif not output.is_data:
        output.line(f"{counted} would be accepted by {session.project} (nothing was created)")
