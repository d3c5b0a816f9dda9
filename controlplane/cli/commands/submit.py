"""Submit jobs: convert a command line to a spec in REST form, which only the server checks."""

from __future__ import annotations

import argparse
import os
import re
from argparse import Namespace
from collections.abc import Callable
from itertools import groupby
from typing import Any

from controlplane.cli.errors import DONE, USAGE, CliError
from controlplane.cli.lookup import FINAL_STATES
from controlplane.cli.parsing import (
    Parser,
    add_flag,
    add_timeout,
    argument,
    directory_path,
    glue_values,
)
from controlplane.cli.session import Session
from jobs.fields.code import VALUE as CODE
from jobs.fields.declaration import DATA, PODS, POLICY, PROGRAM, Entries, Field, Flag
from jobs.fields.declared import DECLARED

# Flags whose value may begin with a dash: `--args --epochs=3`.
_DASHED_VALUES = ("--args", "--command")

# A tree that the server has: its hash, and perhaps the commit of which it was uploaded.
_UPLOADED = re.compile(r"sha256:[0-9a-f]{64}(@\S+)?")

_NAME_HELP = "the job's name: a DNS label"


def prepare_words(words: list[str]) -> list[str]:
    """Return the command line with `--args X` and `--command X` as one word, `--args=X`: argparse would read a value
    that begins with a dash as an option."""
    return glue_values(words, _DASHED_VALUES)


def submit_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard submit hyper1 -p team-a -i quickstart -g 1",
        "yard submit hyper2 -i quickstart -g 0.5 -e EPOCHS=3 --logs",
        "yard submit notebook -i jupyter -g 1 --interactive --port 8888",
        "yard submit train1 -i python --code . -g 1 -- python train.py",
        "yard submit train3 -g 1 --dataset chest-xray@golden:/data --cached -- python train.py /data",
        "yard submit job1 -g 2 --wait -- python train.py --lr 0.1",
        "yard submit train1 -i python --git https://github.com/our-team/train@main -g 1 -- python train.py",
        "yard submit train2 --like train1 -e EPOCHS=20",
        "yard submit train3 -i quickstart -g 1 --pvc data:/mnt --pvc standard:10Gi:/checkpoints",
        "yard submit --file sweep.jsonl -i quickstart -g 1",
    ]
    parser.add_argument("name", metavar="NAME", nargs="?", help=_NAME_HELP)
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="submit every job of a JSON array, JSON lines or a YAML list (- for standard input); the other options"
        " are for the fields that a job there does not give",
    )
    add_flag(parser, "--interactive", about="not preemptible, inside the project's quota")
    _add_fields(parser, "submit")


def submit(args: Namespace, session: Session) -> int:
    """Submit one job, or with --file many. The kind of one job is `interactive` with --interactive; else that of the
    job named by --like; else `train`. Return 0, with --logs or --wait the ended job's exit code. With --dry-run
    submit nothing. Raise CliError (2) for options that exclude each other."""
    default = "train" if args.like is None else None
    kind = "interactive" if args.interactive else default
    if args.file is None and args.name is None:
        raise _misused("the following arguments are required: NAME, or --file FILE")
    if args.file is None:
        return _submit(args, session, kind)
    if args.name is not None or args.logs or args.wait:
        raise _misused("NAME, --logs and --wait are for one job, and --file for many")
    from controlplane.cli.commands.submit_file import submit_file

    return submit_file(args, session, _body(args, session, kind))


def _misused(words: str) -> CliError:
    return CliError(f"submit: {words}", USAGE, "see: yard help submit")


def submit_mpi_arguments(parser: Parser) -> None:
    parser.examples = ["yard submit-mpi dist1 --processes 3 -g 1 -- mpirun python train.py"]
    _add_name(parser)
    _add_fields(parser, "submit-mpi")


def submit_mpi(args: Namespace, session: Session) -> int:
    """Submit a job of the kind `mpi`: its launcher, in the pod of rank 0, starts a rank in every pod."""
    return _submit(args, session, "mpi")


def submit_elastic_arguments(parser: Parser) -> None:
    parser.examples = ["yard submit-elastic el1 --workers 3 --min-workers 1 --max-workers 9 -i elastic -g 1"]
    _add_name(parser)
    _add_fields(parser, "submit-elastic")


def submit_elastic(args: Namespace, session: Session) -> int:
    """Submit a job of the kind `elastic`: its number of workers may change while it runs."""
    return _submit(args, session, "elastic")


def spec_of(args: Namespace) -> dict[str, Any]:
    """Return the fields of a job's spec that the command line gives. The server fills in the others."""
    given = {field.name: _given(args, field) for field in DECLARED if field.flags or field.commands}
    given |= {"name": args.name, "command": args.trailing or args.command or None}
    if args.code is not None and _UPLOADED.fullmatch(args.code):
        given["code"] = CODE.parse(args.code)
    return {field: value for field, value in given.items() if value is not None}


def _given(args: Namespace, field: Field) -> Any:
    value = getattr(args, field.name, None)
    if value is None or not field.value.pieces:
        return value
    gathered, entries = field.value.gather(value), field.entries
    if entries is None or entries.flag is None:
        return gathered
    return [entry | {entries.key: getattr(args, entries.name)} for entry in gathered]


def submitted_text(job: dict[str, Any]) -> str:
    """Return the sentence that confirms a submission. `job`: the job in REST form."""
    return f"job {job['name']} submitted to {job['project']} as {job['id']}"


def _body(args: Namespace, session: Session, kind: str | None) -> dict[str, Any]:
    """Return the job's spec to submit: the fields of the command line, over those of the job named by --like. `kind`:
    the job's kind, None for that of --like. Uploads the directory of --code, or has the server import the repository
    of --git."""
    given = spec_of(args) | ({"kind": kind} if kind else {})
    if args.code is not None and "code" not in given:
        from controlplane.cli.code.upload import bring_code

        given["code"] = bring_code(session, args.code, dict(os.environ))
    if args.git is not None:
        from controlplane.cli.code.repository import bring_repository

        given["code"] = bring_repository(session, args.git)
    if args.like is None:
        return given
    from controlplane.cli.commands.like import spec_like

    return spec_like(session, args.like, given)


def _submit(args: Namespace, session: Session, kind: str | None) -> int:
    spec = _body(args, session, kind)
    query = {"dry_run": True} if args.dry_run else None
    job = session.client.post(f"{session.project_path}/jobs", spec, query, key=args.idempotency_key)
    if args.dry_run:
        from controlplane.cli.commands.explanation import plan_text

        plan = session.client.post(f"{session.project_path}/jobs/plan", spec)
        accepted = f"job {args.name} would be accepted by {session.project} (nothing was created)"
        session.output.object(job | {"plan": plan}, plan_text(accepted, plan))
        return DONE
    _report(args, session, job)
    if args.logs:
        return _follow(session, job)
    if args.wait:
        return _wait(session, job, args.timeout)
    return DONE


def _report(args: Namespace, session: Session, job: dict[str, Any]) -> None:
    """Print the submitted job, created volumes, warnings and, unless the command waits for the job, the next
    commands to use. With --logs all of it goes to standard error."""
    created = submitted_text(job)
    # Standard output is for the job's own output.
    if args.logs and not session.output.is_data:
        session.output.say(created)
    else:
        session.output.object(job, created)
        session.output.flush()
    for mount, asked in zip(job.get("volumes") or [], args.volumes or [], strict=False):
        if "new" in asked and "volume" in mount:
            session.output.say(
                f"volume {mount['volume']} created for {mount['mount_path']}; it outlives the job"
            )
    for warning in job.get("warnings") or []:
        session.output.say(f"warning: {warning}")
    if not (args.logs or args.wait):
        name = f"{job['name']} -p {job['project']}"
        session.output.say(
            f"next: yard logs {name} -f\n      yard describe job {name}\n      yard stop {name}"
        )


def _follow(session: Session, job: dict[str, Any]) -> int:
    from controlplane.cli.commands.logs import Selection, follow
    from controlplane.cli.commands.wait import exit_code_of_job, wait_for

    try:
        follow(session, str(job["id"]), Selection())
        finished = wait_for(session, str(job["id"]), FINAL_STATES)
    except KeyboardInterrupt:
        _report_detached(session, job)
        raise
    _report_end(session, finished)
    return exit_code_of_job(finished)


def _wait(session: Session, job: dict[str, Any], timeout_seconds: int | None) -> int:
    from controlplane.cli.commands.wait import exit_code_of_job, wait_for

    try:
        finished = wait_for(session, str(job["id"]), FINAL_STATES, timeout_seconds)
    except KeyboardInterrupt:
        _report_detached(session, job)
        raise
    _report_end(session, finished)
    return exit_code_of_job(finished)


def _report_end(session: Session, job: dict[str, Any]) -> None:
    """Print a job's final state, with the reason unless the job succeeded."""
    state, why = job["status"]["state"], job["status"]["reason"]["message"]
    session.output.say(f"job {job['name']} {state}" + (f": {why}" if why and state != "succeeded" else ""))


def _report_detached(session: Session, job: dict[str, Any]) -> None:
    name = f"{job['name']} -p {job['project']}"
    session.output.say(f"detached: the job continues. yard logs {name} -f, or yard stop {name}")


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help=_NAME_HELP)


def _add_fields(parser: Parser, command: str) -> None:
    """Declare the options of `command` for the fields of a job, grouped under headings, and the options for after the
    submission."""
    for title, group_fields in groupby(sorted(DECLARED, key=_group_order), key=lambda field: field.group):
        group = parser.add_argument_group(title)
        for field in group_fields:
            for flag in field.flags_of(command):
                _add_flag(group, field, flag)
            if field.entries and field.entries.flag:
                _add_entries(group, field.entries, field.entries.flag)
        if title == PROGRAM:
            _add_code(group)
    _add_afterwards(parser)


def _group_order(field: Field) -> int:
    return (PROGRAM, PODS, DATA, POLICY).index(field.group)


def _add_flag(group: argparse._ArgumentGroup, field: Field, flag: Flag) -> None:
    about = argparse.SUPPRESS if flag.is_hidden else flag.help or field.about
    if flag.metavar is None:
        action = argparse.BooleanOptionalAction if field.omitted is None else "store_true"
        group.add_argument(*flag.names, dest=field.name, action=action, default=None, help=about)
        return
    is_repeated = field.value.pieces is not None
    group.add_argument(
        *flag.names,
        dest=field.name,
        action="append" if is_repeated else "store",
        type=argument(_parser(field, flag), field.value.text),
        metavar=flag.metavar,
        required=flag.is_required,
        help=f"{about}; repeat for more" if is_repeated else about,
    )


def _parser(field: Field, flag: Flag) -> Callable[[str], Any]:
    parse = field.value.parse
    return (lambda text: parse(text) | flag.sets) if flag.sets else parse


def _add_entries(group: argparse._ArgumentGroup, entries: Entries, flag: Flag) -> None:
    shape: dict[str, Any] = {"metavar": flag.metavar} if flag.metavar else {"action": "store_true"}
    group.add_argument(*flag.names, dest=entries.name, default=entries.off, help=flag.help, **shape)


def _code(text: str) -> str:
    """Return the argument of --code: a directory, or the hash of an uploaded tree. Raise ArgumentTypeError for an
    empty text or a malformed hash."""
    if text.startswith("sha256:") and not _UPLOADED.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tree's hash, which has 64 digits")
    return str(directory_path(text))


def _add_code(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--code",
        type=_code,
        metavar="DIR",
        help="upload this directory as the job's working directory: the files that git tracks or does not ignore,"
        " without git all files; except those that its .yardignore names. Or sha256:...: code that an earlier job ran",
    )
    source.add_argument(
        "--git",
        metavar="URL@REF",
        help="the same from a git repository that an admin allowed: a branch, a tag or a commit's full hash",
    )
    group.add_argument(
        "--like", metavar="JOB", help="repeat this job, with its code; other options replace its fields"
    )


def _add_afterwards(parser: Parser) -> None:
    group = parser.add_argument_group("afterwards")
    add_flag(group, "--dry-run", about="check everything, create nothing")
    add_flag(group, "--wait", about="wait until the job ends and exit with its exit code")
    add_flag(group, "--logs", about="follow the output, then exit with the job's exit code")
    add_timeout(group, "time limit of --wait; exit code 7 when it passes")
    group.add_argument(
        "--idempotency-key", metavar="KEY", help="repeated runs with the same key submit only once"
    )
