"""Submitting jobs: from a command line to the spec that REST takes. The server checks it; nothing is checked twice."""

from __future__ import annotations

import argparse
import os
import shlex
from argparse import Namespace
from typing import Any

from controlplane.cli.errors import DONE, USAGE, CliError
from controlplane.cli.lookup import FINAL_STATES
from controlplane.cli.parsing import (
    Parser,
    decimal_number,
    duration_seconds,
    glue_values,
    key_value,
    memory_mib,
)
from controlplane.cli.session import Session

# Their value may begin with a dash: `--args --epochs=3`.
_DASHED_VALUES = ("--args", "--command")

# Understood, so that the server says what is missing, but shown nowhere until it works.
_NOT_YET = argparse.SUPPRESS
_NAME_HELP = "the job's name: a DNS label"


def prepare_words(words: list[str]) -> list[str]:
    """Words as argparse reads them."""
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
    _add_program(parser)
    parser.add_argument(
        "--interactive", action="store_true", help="not preemptible, inside the project's quota"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="pods that start together or not at all")
    _add_rest(parser)


def submit(args: Namespace, session: Session) -> int:
    """Submit a `train` job, or with --interactive an `interactive` one; with --file many of any kind."""
    default = "train" if args.like is None else None
    kind = {"kind": "interactive" if args.interactive else default, "workers": args.workers}
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
    """A job whose launcher, in the pod of rank 0, starts a rank in every pod."""
    parser.examples = ["yard submit-mpi dist1 --processes 3 -g 1 -- mpirun python train.py"]
    _add_name(parser)
    _add_program(parser)
    parser.add_argument(
        "--processes", type=int, required=True, metavar="N", help="ranks, one in each pod; rank 0 launches"
    )
    _add_rest(parser)


def submit_mpi(args: Namespace, session: Session) -> int:
    """Submit an `mpi` job."""
    return _submit(args, session, {"kind": "mpi", "workers": args.processes})


def submit_elastic_arguments(parser: Parser) -> None:
    parser.examples = ["yard submit-elastic el1 --workers 3 --min-workers 1 --max-workers 9 -i elastic -g 1"]
    _add_name(parser)
    _add_program(parser)
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="pods to start with")
    parser.add_argument("--min-workers", type=int, metavar="A", help="never fewer")
    parser.add_argument("--max-workers", type=int, metavar="B", help="never more")
    _add_rest(parser)


def submit_elastic(args: Namespace, session: Session) -> int:
    """Submit an `elastic` job."""
    bounds = {"workers": args.workers, "min_workers": args.min_workers, "max_workers": args.max_workers}
    return _submit(args, session, {"kind": "elastic", **bounds})


def spec_of(args: Namespace) -> dict[str, Any]:
    """Return the fields given on the command line; the server fills in the others."""
    given: dict[str, Any] = {
        "name": args.name,
        "image": args.image,
        "command": args.trailing or (shlex.split(args.command) if args.command else None),
        "args": args.args,
        "working_dir": args.working_dir,
        "env": dict(args.env) if args.env else None,
        "secret_env": dict(args.secret_env) if args.secret_env else None,
        "image_pull_secrets": args.image_pull_secret,
        "gpus": args.gpus,
        "gpu_memory_mib": args.gpu_memory,
        "cpus": args.cpus,
        "memory_mib": args.memory,
        "extra_resources": dict(args.resource) if args.resource else None,
        "preemptible": args.preemptible,
        "priority": args.priority,
        "node_pool": args.node_pool,
        "compute_template": args.template,
        "large_shm": True if args.large_shm else None,
        "max_runtime_seconds": args.max_runtime,
        "expected_runtime_seconds": args.expected_runtime,
        "retries": args.retries,
        "ttl_seconds_after_finished": args.ttl,
        "labels": dict(args.label) if args.label else None,
        "ports": _ports(args),
        "volumes": _volumes(args) or None,
        "datasets": [dataset_of(text, args.cached) for text in args.dataset or []] or None,
        "snapshot_on": args.snapshot_on,
        "artifacts": _artifacts(args) or None,
    }
    return {field: value for field, value in given.items() if value is not None}


def _artifacts(args: Namespace) -> list[dict[str, Any]]:
    kept = [artifact_of(text, "success") for text in args.keep or []]
    return kept + [artifact_of(text, "always") for text in args.keep_always or []]


def artifact_of(text: str, when: str) -> dict[str, Any]:
    """`DIR[:NAME]` as an artifact of the spec."""
    path, _, name = text.partition(":")
    return {"path": path, "when": when, **({"name": name} if name else {})}


def _volumes(args: Namespace) -> list[dict[str, Any]]:
    return [volume_of(text) for text in [*(args.pvc or []), *(args.volume or [])]]


def volume_of(text: str) -> dict[str, Any]:
    """`VOLUME:PATH[:ro]`, `CLASS:SIZE:PATH[:NAME]` (a new volume) or `/HOST/PATH:PATH` as a mount of the spec."""
    parts = text.split(":")
    if len(parts) == 3 and parts[2] == "ro" and not text.startswith("/"):
        return {"volume": parts[0], "mount_path": parts[1], "read_only": True}
    if len(parts) in (3, 4) and not text.startswith("/"):
        storage_class, size, path, *name = parts
        new = {"storage_class": storage_class, "size": size, **({"name": name[0]} if name else {})}
        return {"new": new, "mount_path": path}
    if len(parts) != 2 or not all(parts):
        raise CliError(
            f"{text!r} is not a mount", USAGE, "write VOLUME:PATH, CLASS:SIZE:PATH or HOST-PATH:PATH"
        )
    return {"host_path" if text.startswith("/") else "volume": parts[0], "mount_path": parts[1]}


def dataset_of(text: str, is_cached: bool) -> dict[str, Any]:
    """`NAME[@VERSION]:PATH` as a mount of the spec."""
    source, colon, path = text.rpartition(":")
    name, _, version = source.partition("@")
    if not colon or not name or not path:
        raise CliError(f"{text!r} is not a dataset", USAGE, "write NAME:PATH or NAME@VERSION:PATH")
    return {"dataset": name, "version": version or "latest", "cached": is_cached, "mount_path": path}


def secret_source(text: str) -> tuple[str, dict[str, str]]:
    """`NAME=SECRET:KEY` as an entry of `secret_env`."""
    name, source = key_value(text)
    secret, colon, key = source.partition(":")
    if not colon or not secret or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SECRET:KEY")
    return name, {"secret": secret, "key": key}


def submitted_text(job: dict[str, Any]) -> str:
    """Return the message for an accepted job."""
    return f"job {job['name']} submitted to {job['project']} as {job['id']}"


def _body(args: Namespace, session: Session, extra: dict[str, Any]) -> dict[str, Any]:
    """The job to submit: what the command line says, on top of the job that --like names."""
    given = {**spec_of(args), **{field: value for field, value in extra.items() if value is not None}}
    if args.code is not None:
        from controlplane.cli.code.upload import bring_code

        given["code"] = bring_code(session, args.code, dict(os.environ))
    if args.git is not None:
        from controlplane.cli.code.repository import bring_repository

        given["code"] = bring_repository(session, args.git)
    if args.like is None:
        return given
    from controlplane.cli.commands.like import spec_like

    return spec_like(session, args.like, given)


def _submit(args: Namespace, session: Session, extra: dict[str, Any]) -> int:
    spec = _body(args, session, extra)
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
    """The answer, on standard error when standard output is for the job's own output; then what to do next."""
    created = submitted_text(job)
    if args.logs and not session.output.is_data:
        session.output.say(created)
    else:
        session.output.object(job, created)
        session.output.flush()
    for mount, asked in zip(job.get("volumes") or [], _volumes(args), strict=False):
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
    """How it ended, and why unless that was well."""
    state, why = job["status"]["state"], job["status"]["reason"]["message"]
    session.output.say(f"job {job['name']} {state}" + (f": {why}" if why and state != "succeeded" else ""))


def _report_detached(session: Session, job: dict[str, Any]) -> None:
    name = f"{job['name']} -p {job['project']}"
    session.output.say(f"detached: the job goes on. yard logs {name} -f, or yard stop {name}")


def _ports(args: Namespace) -> list[dict[str, Any]] | None:
    return [{"port": port, "service_type": args.service_type} for port in args.port or []] or None


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help=_NAME_HELP)


def _add_program(parser: Parser) -> None:
    group = parser.add_argument_group("what runs")
    group.add_argument("-i", "--image", metavar="IMAGE", help="an image of the catalogue or a registry")
    group.add_argument(
        "--command", metavar="C", help="the program, instead of the image's own (or put it after --)"
    )
    group.add_argument("--args", action="append", metavar="A", help="an argument of it; repeat for more")
    group.add_argument(
        "-e", "--env", action="append", type=key_value, metavar="K=V", help="environment; repeat for more"
    )
    group.add_argument(
        "--secret-env",
        action="append",
        type=secret_source,
        metavar="K=SECRET:KEY",
        help="environment from a secret of the project's namespace (Kubernetes)",
    )
    group.add_argument(
        "--image-pull-secret", action="append", metavar="SECRET", help="pull the image with it (Kubernetes)"
    )
    group.add_argument("--working-dir", metavar="DIR", help="where it starts")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--code",
        metavar="DIR",
        help="bring the files of this directory along, as the job's working directory: what git tracks or does not"
        " ignore, without git all; less what a .yardignore there names",
    )
    source.add_argument(
        "--git",
        metavar="URL@REF",
        help="the same from a git repository that an admin allowed: a branch, a tag or a commit's full hash",
    )
    group.add_argument(
        "--like", metavar="JOB", help="as this job, its code included, but for what else is said here"
    )


def _add_rest(parser: Parser) -> None:
    _add_resources(parser)
    _add_mounts_and_ports(parser)
    _add_policy(parser)
    group = parser.add_argument_group("afterwards")
    group.add_argument("--dry-run", action="store_true", help="check everything, create nothing")
    group.add_argument(
        "--wait", action="store_true", help="stay until the job ends and exit with its exit code"
    )
    group.add_argument(
        "--logs", action="store_true", help="follow the output, then exit with the job's exit code"
    )
    group.add_argument(
        "--timeout", type=duration_seconds, metavar="TIME", help="of --wait; exit code 7 when it passes"
    )
    group.add_argument("--idempotency-key", metavar="KEY", help="submit once however often this line runs")


def _add_resources(parser: Parser) -> None:
    group = parser.add_argument_group("what each pod gets")
    group.add_argument(
        "-g", "--gpus", type=decimal_number, metavar="GPUS", help="a whole number, or a share below 1"
    )
    group.add_argument(
        "--gpu-memory", type=memory_mib, metavar="SIZE", help="GPU memory instead of GPUs, e.g. 8Gi"
    )
    group.add_argument("--cpus", "--cpu", type=decimal_number, metavar="CPUS", help="CPU cores")
    group.add_argument("--memory", type=memory_mib, metavar="SIZE", help="main memory, e.g. 16Gi")
    group.add_argument(
        "--resource",
        action="append",
        type=key_value,
        metavar="NAME=N",
        help="another resource of the cluster, e.g. vpc.amazonaws.com/efa=4 (Kubernetes)",
    )
    group.add_argument("--large-shm", action="store_true", help="a large /dev/shm")
    group.add_argument("--template", metavar="T", help=_NOT_YET)


def _add_mounts_and_ports(parser: Parser) -> None:
    group = parser.add_argument_group("data and ports")
    group.add_argument(
        "--pvc",
        action="append",
        metavar="VOLUME:PATH|CLASS:SIZE:PATH",
        help="mount a volume (VOLUME:PATH:ro to read only), or a new one of this storage class and size, which outlives"
        " the job and has its name (CLASS:SIZE:PATH:NAME for another)",
    )
    group.add_argument(
        "-v",
        "--volume",
        action="append",
        metavar="HOST:PATH",
        help="mount a path of the node that an admin allowed",
    )
    group.add_argument(
        "--dataset",
        action="append",
        metavar="NAME[@VERSION]:PATH",
        help="mount a version of a dataset read-only; the job starts once its files are beside the GPUs",
    )
    group.add_argument(
        "--cached", action="store_true", help="keep these files beside the GPUs for the next jobs"
    )
    group.add_argument(
        "--snapshot-on",
        action="append",
        metavar="EVENT",
        help="snapshot the volumes on success, preempt, epoch or best_metric; repeat for more",
    )
    keep = "keep this directory of the output{}, as an artifact with the job: below the working directory, or"
    keep += " '$TRAINYARD_CHECKPOINT_DIR'"
    group.add_argument(
        "--keep", action="append", metavar="DIR[:NAME]", help=keep.format(" when the job succeeds")
    )
    group.add_argument(
        "--keep-always", action="append", metavar="DIR[:NAME]", help=keep.format(" however the job ends")
    )
    group.add_argument(
        "--port", action="append", type=int, metavar="P", help="a port to reach through the control plane"
    )
    group.add_argument(
        "--service-type", default="ingress", metavar="TYPE", help="how ports are reached (default ingress)"
    )


def _add_policy(parser: Parser) -> None:
    group = parser.add_argument_group("how it is scheduled")
    group.add_argument("--priority", type=int, metavar="N", help="0 to 1000, within the project")
    group.add_argument("--preemptible", action="store_true", default=None, help="may lose its GPUs to others")
    group.add_argument(
        "--no-preemptible", dest="preemptible", action="store_false", help="in quota only, never preempted"
    )
    group.add_argument("--node-pool", metavar="POOL", help="only on nodes of this pool")
    group.add_argument("--max-runtime", type=duration_seconds, metavar="TIME", help="stop it after this long")
    group.add_argument("--expected-runtime", type=duration_seconds, metavar="TIME", help="for forecasts")
    group.add_argument(
        "--retries", type=int, metavar="N", help="start again after a failure, at most N times"
    )
    group.add_argument(
        "--ttl", type=duration_seconds, metavar="TIME", help="delete the record this long after the end"
    )
    group.add_argument(
        "-l", "--label", action="append", type=key_value, metavar="K=V", help="a label; repeat for more"
    )
