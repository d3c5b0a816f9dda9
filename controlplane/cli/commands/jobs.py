"""Commands for jobs: list, describe, explain, stop, suspend, resume, delete, clone."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from controlplane.cli import formats
from controlplane.cli.code.about import describe_code
from controlplane.cli.commands.explanation import estimate_text
from controlplane.cli.commands.wait import wait_for
from controlplane.cli.confirmation import add_needless_yes
from controlplane.cli.lookup import FINAL_STATES, each_name, find_job, is_id, job_id, jobs_named
from controlplane.cli.parsing import Parser, add_flag, add_job, duration_seconds, positive_number
from controlplane.cli.session import Session
from controlplane.cli.tables import Column, Row, status_of

AWAY = "Its cluster does not answer. The data below was read before."
DEFAULT_ROWS = 50
# Limit on the omitted events that are counted, because all of them are transferred for it.
EVENTS_COUNTED = 500


def reason_text(row: Row) -> str:
    """Return why a job is in its state: the message, else the code, "" without a reason."""
    reason = status_of(row).get("reason") or {}
    return str(reason.get("message") or reason.get("code") or "")


def nodes_text(row: Row) -> str:
    """Return the names of the nodes on which the job has pods, sorted."""
    return ", ".join(sorted({pod["node"] for pod in status_of(row).get("pods") or [] if pod.get("node")}))


def requested_gpus(row: Row) -> str:
    """Return how many GPUs the job has in all its workers or, before its start, requests. For a job that shares a GPU
    by memory, return the GPU memory per worker instead."""
    if row.get("gpus") is None:
        return formats.mebibytes(row.get("gpu_memory_mib"))
    return formats.gpus(float(row["gpus"]) * (status_of(row).get("workers") or row.get("workers") or 1))


def workers_text(row: Row) -> str:
    """Return the number of workers that a job requests; for an elastic job also the present number and its bounds: `2
    of 4 (1-8)`."""
    has, wanted, most = status_of(row).get("workers"), row.get("workers"), row.get("max_workers")
    size = f"{has} of {wanted}" if most is not None and has is not None else f"{wanted}"
    return size if most is None else f"{size} ({row.get('min_workers')}-{most})"


def devices_text(pod: Row) -> str:
    """Return the indexes of a pod's GPUs on its node, with the share of each that is not whole: `0, 3 (0.5)`."""
    devices = pod.get("devices") or []
    return ", ".join(
        str(device["index"]) + ("" if device.get("share", 1) == 1 else f" ({device['share']:g})")
        for device in devices
    )


def progress_text(row: Row) -> str:
    """Return the job's progress as text; with the remaining time if it is known and the job has not ended."""
    status = status_of(row)
    is_over = status.get("state") in FINAL_STATES or not status.get("is_reachable", True)
    return formats.progress(status.get("progress"), is_over=is_over)


def _is_away(status: Row) -> bool:
    """Return whether an unfinished job's state may be outdated, because its cluster does not answer."""
    return not status.get("is_reachable", True) and status.get("state") not in FINAL_STATES


NAME = Column("NAME", lambda row: row["name"])
PROJECT = Column("PROJECT", lambda row: row.get("project"))
STATE = Column("STATE", lambda row: status_of(row).get("state"))
JOB_COLUMNS = (
    NAME,
    STATE,
    Column("KIND", lambda row: row.get("kind")),
    Column("GPUS", requested_gpus, is_number=True),
    Column("NODE", nodes_text),
    Column("RUNTIME", lambda row: formats.duration(status_of(row).get("runtime_seconds")), is_number=True),
    Column("AGE", lambda row: formats.age(row.get("created_at")), is_number=True),
    Column("PROGRESS", progress_text),
    Column("USER", lambda row: row.get("user"), is_wide=True),
    Column("IMAGE", lambda row: row.get("image"), is_wide=True),
    Column("PRIORITY", lambda row: row.get("priority"), is_wide=True, is_number=True),
    Column("ATTEMPT", lambda row: status_of(row).get("attempt"), is_wide=True, is_number=True),
    Column("ID", lambda row: row.get("id"), is_wide=True),
    Column(
        "REASON",
        lambda row: "" if status_of(row).get("state") in ("running", "scaling") else reason_text(row),
    ),
)
POD_COLUMNS = (
    Column("RANK", lambda pod: pod.get("rank"), is_number=True),
    Column("POD", lambda pod: pod.get("name")),
    Column("ROLE", lambda pod: pod.get("role")),
    Column("STATE", lambda pod: "stopped" if pod.get("reason") == "stopped" else pod.get("state")),
    Column("NODE", lambda pod: pod.get("node")),
    Column("DEVICES", devices_text),
    Column("EXIT", lambda pod: pod.get("exit_code"), is_number=True),
)
EVENT_COLUMNS = (
    Column("AGE", lambda event: formats.age(event.get("at")), is_number=True),
    Column("EVENT", lambda event: event.get("kind")),
    Column("REASON", lambda event: event.get("reason")),
    Column("BY", lambda event: event.get("actor")),
    Column("MESSAGE", lambda event: event.get("message")),
)


def list_jobs_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard list jobs",
        "yard list jobs -A --state queued,running",
        "yard list jobs -o wide --watch",
    ]
    add_flag(
        parser, "-A", "--all-projects", "--all-namespaces", about="jobs of every project that you may see"
    )
    parser.add_argument("--state", metavar="STATE[,STATE]", help="only jobs in these states")
    parser.add_argument(
        "--kind", metavar="KIND[,KIND]", help="only these kinds: train, interactive, mpi, elastic"
    )
    parser.add_argument("--user", metavar="NAME[,NAME]", help="only jobs of these users")
    parser.add_argument(
        "--limit",
        type=positive_number,
        default=DEFAULT_ROWS,
        metavar="N",
        help=f"at most N jobs (default {DEFAULT_ROWS})",
    )


def list_jobs(args: Namespace, session: Session) -> None:
    """List the jobs of the project, or with -A of all projects that the user may see, newest first, at most --limit."""
    path = "jobs" if args.all_projects else f"{session.project_path}/jobs"
    query = {"state": args.state, "kind": args.kind, "user": args.user}
    page = session.client.pages(path, {**query}, args.limit)
    session.output.objects(page, (NAME, PROJECT, *JOB_COLUMNS[1:]) if args.all_projects else JOB_COLUMNS)
    if page.get("next") and not session.output.is_data:
        session.output.say(f"there are more than {args.limit}: --limit N shows more")


def describe_job_arguments(parser: Parser) -> None:
    parser.examples = ["yard describe job hyper1", "yard describe job hyper1 -o jsonpath={.status.state}"]
    add_job(parser)
    parser.add_argument(
        "-e", "--events", type=int, default=10, metavar="N", help="how many events to show (default 10)"
    )


def describe_job(args: Namespace, session: Session) -> None:
    """Print a job with its pods and its latest --events events; for a data format (-o json), only the job's REST
    object."""
    job = find_job(session, args.name)
    if session.output.is_data:
        session.output.data(job)
        return
    session.output.line(formats.fields(_job_fields(job)))
    if _is_away(status_of(job)):
        session.output.line(f"\n{AWAY}")
    pods = status_of(job).get("pods") or []
    if pods:
        session.output.line("\nPods")
        session.output.rows(pods, POD_COLUMNS)
    _show_events(session, job, args.events)


def explain_arguments(parser: Parser) -> None:
    parser.examples = ["yard explain hyper1"]
    add_job(parser)


def explain(args: Namespace, session: Session) -> None:
    """Print why a job is in its state: the jobs ahead of it, the projects that hold GPUs, and what would start it."""
    from controlplane.cli.commands.explanation import explanation_text

    answer = session.get(f"jobs/{job_id(session, args.name)}/explain")
    session.output.object(answer, explanation_text(args.name, answer, AWAY if _is_away(answer) else ""))


def stop_arguments(parser: Parser) -> None:
    _names(parser, ["yard stop hyper1", "yard stop hyper1 hyper2 -p team-a"])


def stop(args: Namespace, session: Session) -> int:
    """Stop each job. Its record stays."""
    return _each(args, session, "stop")


def suspend_arguments(parser: Parser) -> None:
    _names(parser, ["yard suspend hyper1", "yard suspend hyper1 --grace 5m --wait"])
    parser.add_argument(
        "--grace",
        type=duration_seconds,
        metavar="TIME",
        help="for its programs to save a checkpoint, from SIGTERM to SIGKILL (default 60s, at most 1h)",
    )
    add_flag(parser, "--wait", about="until it is suspended")


def suspend(args: Namespace, session: Session) -> int:
    """Suspend each job: its pods end and it holds no GPUs until it is resumed. With --wait, wait until that is so."""
    body = {} if args.grace is None else {"grace_seconds": args.grace}
    return _each(args, session, "suspend", body, "suspended" if args.wait else "")


def resume_arguments(parser: Parser) -> None:
    _names(parser, ["yard resume hyper1"])


def resume(args: Namespace, session: Session) -> int:
    """Queue each suspended job again."""
    return _each(args, session, "resume")


def delete_arguments(parser: Parser) -> None:
    _names(parser, ["yard delete hyper1", "yard delete hyper1 hyper2"])
    add_needless_yes(parser)


def delete(args: Namespace, session: Session) -> int:
    """Delete each named job with its record; a running one is stopped first."""
    return each_name(args.names, session, lambda name: _delete(session, name))


def _delete(session: Session, name: str) -> None:
    # A name may be used again once its job has ended.
    newest, *earlier = [name] if is_id(name) else jobs_named(session, name)
    answer = session.client.delete(f"jobs/{newest}")
    session.output.object(answer, f"job {name} is {'stopped first, then deleted' if answer else 'deleted'}")
    if earlier:
        remain = f"{len(earlier)} earlier {name} {'remains' if len(earlier) == 1 else 'remain'}"
        session.output.say(f"{remain}; ids: yard list jobs -p {session.project} -o wide")


def clone_arguments(parser: Parser) -> None:
    parser.examples = ["yard clone hyper1 --name hyper2"]
    parser.add_argument("name", metavar="NAME", help="the job to copy, by name or id")
    parser.add_argument(
        "--name", dest="new_name", metavar="NAME", help="the copy's name (default: the server chooses)"
    )


def clone(args: Namespace, session: Session) -> None:
    """Submit the spec of a job again, under another name."""
    body = {"name": args.new_name} if args.new_name else {}
    answer = session.client.post(f"jobs/{job_id(session, args.name)}/clone", body)
    session.output.object(answer, f"job {answer['name']} submitted to {answer['project']} as {answer['id']}")


def _names(parser: Parser, examples: list[str]) -> None:
    parser.examples = examples
    parser.add_argument("names", metavar="NAME", nargs="+", help="jobs, by name or id")


def _each(args: Namespace, session: Session, verb: str, body: Row | None = None, awaited: str = "") -> int:
    """Send `verb`, the last part of the route, for each named job. With `awaited`, wait until the job is in that
    state or has ended. Return the exit code of `each_name`."""

    def act(name: str) -> None:
        answer = session.client.post(f"jobs/{job_id(session, name)}/{verb}", body)
        if awaited:
            answer = wait_for(session, answer["id"], frozenset({awaited}))
        why = f": {reason_text(answer)}" if awaited else ""
        session.output.object(answer, f"job {name} is {answer['status']['state']}{why}")

    return each_name(args.names, session, act)


def _job_fields(job: Row) -> list[tuple[str, object]]:
    status = status_of(job)
    return [
        ("Name", job["name"]),
        ("Id", job.get("id")),
        ("Project", job.get("project")),
        ("User", job.get("user")),
        ("Kind", job.get("kind")),
        ("State", status.get("state")),
        ("Reason", reason_text(job)),
        ("Queue position", status.get("queue_position")),
        ("Start estimate", estimate_text(status.get("start_estimate"))),
        ("Attempt", status.get("attempt")),
        ("Exit code", status.get("exit_code")),
        ("Progress", _progress_and_measures(job)),
        ("Checkpoint", formats.checkpoint(status.get("progress"))),
        ("Service", ", ".join(map(_service_text, status.get("service_urls") or []))),
        ("GPUs", requested_gpus(job)),
        ("GPU utilisation", formats.percent(status.get("gpu_utilization"))),
        ("CPUs", job.get("cpus")),
        ("Memory", formats.mebibytes(job.get("memory_mib"))),
        ("Workers", workers_text(job)),
        ("Priority", job.get("priority")),
        ("Preemptible", "yes" if job.get("preemptible") else "no"),
        ("Image", job.get("image")),
        ("Command", _command_text(job)),
        ("Code", describe_code(job["code"]) if job.get("code") else None),
        ("Datasets", ", ".join(map(_dataset_text, job.get("datasets") or []))),
        ("Volumes", ", ".join(map(_volume_text, job.get("volumes") or []))),
        ("Snapshots on", ", ".join(job.get("snapshot_on") or [])),
        ("Keeps", ", ".join(f"{one['path']} as {one['name']}" for one in job.get("artifacts") or [])),
        ("Environment", formats.pairs(job.get("env"))),
        ("Labels", formats.pairs(job.get("labels"))),
        ("Created", formats.local_time(job.get("created_at"))),
        ("Started", formats.local_time(status.get("started_at"))),
        ("Finished", formats.local_time(status.get("finished_at"))),
        ("Run time", formats.duration(status.get("runtime_seconds"))),
    ]


def _command_text(job: Row) -> str:
    import shlex

    return shlex.join([*(job.get("command") or []), *(job.get("args") or [])])


def _dataset_text(mount: Row) -> str:
    """Return a dataset that a job mounts: `xray@3 at /data (golden, cached)`; `golden`: the tag that was asked for."""
    subset = f"/{mount['subset']}" if mount.get("subset") else ""
    asked = mount.get("asked") if mount.get("asked") not in (None, str(mount["version"])) else None
    notes = ", ".join(note for note in (asked, "cached" if mount.get("cached") else None) if note)
    name = f"{mount['dataset']}@{mount['version']}{subset} at {mount['mount_path']}"
    return f"{name} ({notes})" if notes else name


def _volume_text(mount: Row) -> str:
    read_only = " (read-only)" if mount.get("read_only") else ""
    return f"{mount['volume']} at {mount['mount_path']}{read_only}"


def _progress_and_measures(job: Row) -> str:
    report = status_of(job).get("progress") or {}
    measures = {
        key: formats.measure(report[key]) for key in ("loss", "accuracy") if report.get(key) is not None
    }
    return ", ".join(part for part in (progress_text(job), formats.pairs(measures)) if part)


def _service_text(service: Any) -> str:
    return str(service.get("url")) if isinstance(service, dict) else str(service)


def _show_events(session: Session, job: Row, count: int) -> None:
    if count <= 0:
        return
    page = session.client.pages(f"jobs/{job['id']}/events", {}, max(count + 1, EVENTS_COUNTED))
    latest, left = page["results"], len(page["results"]) - count
    if latest:
        session.output.line("\nEvents")
        session.output.rows(latest[:count], EVENT_COLUMNS)
    if left > 0 and page.get("next"):
        session.output.line(f"and more than {left} more: -e N shows more")
    elif left > 0:
        session.output.line(f"and {left} more: -e {len(latest)} shows all")
