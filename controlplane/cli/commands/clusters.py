"""Clusters: list, describe, add, edit, check, remove."""

from __future__ import annotations

import argparse
import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

from controlplane.cli import formats
from controlplane.cli.client import segment
from controlplane.cli.confirmation import add_preview, confirm_name
from controlplane.cli.errors import DONE, FAILED, TIMED_OUT, USAGE, CliError, require_changes
from controlplane.cli.parsing import Parser, add_flag, add_timeout, key_value
from controlplane.cli.session import Session
from controlplane.cli.tables import Column, Row

POLL_SECONDS = 0.5
TIMEOUT_SECONDS = 120
# How long to wait for the first count of an attached cluster's nodes; the command must also end for a cluster that
# reports none.
COUNT_SECONDS = 15


def state_of(cluster: Row) -> str:
    """Return the word for a cluster's condition: `checking`, `attached`, `refused` or `unreachable`."""
    status = cluster["status"]
    return "unreachable" if status["state"] == "attached" and not status["is_reachable"] else status["state"]


CLUSTER_COLUMNS = (
    Column("NAME", lambda row: row["name"]),
    Column("ENGINE", lambda row: row["engine"]),
    Column("SCHEDULER", lambda row: row["scheduler"]),
    Column("STATE", state_of),
    Column("NODES", lambda row: row["nodes"], is_number=True),
    Column("READY", lambda row: row["nodes_ready"], is_number=True),
    Column("GPUS", lambda row: row["gpus"], is_number=True),
    Column("CHECKED", lambda row: formats.age(row["status"]["checked_at"]), is_number=True, is_wide=True),
)
CHECK_COLUMNS = (
    Column("CHECK", lambda check: check["name"]),
    Column("RESULT", lambda check: check["outcome"]),
    Column("FOUND", lambda check: check["message"]),
    Column("WITHOUT IT", lambda check: "" if check["outcome"] == "ok" else check["without_it"]),
)


def list_clusters_arguments(parser: Parser) -> None:
    parser.examples = ["yard list clusters", "yard list clusters -o wide"]


def list_clusters(args: Namespace, session: Session) -> None:
    """Print every cluster, including refused ones."""
    session.show_list("clusters", CLUSTER_COLUMNS, 500)


def describe_cluster_arguments(parser: Parser) -> None:
    parser.examples = ["yard describe cluster prod"]
    parser.add_argument("name", metavar="NAME")


def describe_cluster(args: Namespace, session: Session) -> None:
    """Print one cluster with its check results; admins also see its settings."""
    _show(session, session.get(_path(args.name)))


def cluster_view_arguments(parser: Parser) -> None:
    parser.examples = ["yard cluster view local --anonymous > view.json"]
    parser.add_argument("name", metavar="NAME")
    add_flag(parser, "--anonymous", about="replace all names by numbers")


def cluster_view(args: Namespace, session: Session) -> None:
    """Print the scheduler's input as JSON, for a bug report; `controlplane.scheduling.replay` repeats the decision
    with it. With --anonymous names are replaced by numbers."""
    query = {"anonymous": True} if args.anonymous else {}
    session.output.line(json.dumps(session.client.get(f"{_path(args.name)}/view", query)))


def cluster_add_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard cluster add prod --kubeconfig ~/.kube/config --context prod",
        "yard cluster add here --in-cluster --scheduler kai",
        "yard cluster add prod --kubeconfig prod.yaml --set work_storage_class=fast --set work_size=50Gi",
    ]
    parser.add_argument("name", metavar="NAME", help="a DNS label of at most 50 characters")
    parser.add_argument(
        "--engine", metavar="KIND", help="what runs its pods (default: the kind with the credentials given)"
    )
    _add_access(parser)
    _add_wait(parser)
    add_flag(parser, "--dry-run", about="check what was given, attach nothing")


def cluster_add(args: Namespace, session: Session) -> int:
    """Attach a cluster, wait for its check unless --no-wait, and print the result. Exit code 1 if a check failed. With
    --dry-run attach nothing. Raise CliError (2) if the options do not say how to reach the cluster."""
    body = {"name": args.name, **_credentials(args), "settings": dict(args.set or [])}
    if len(body) == 2 and not args.engine:
        hint = "give --kubeconfig FILE or --in-cluster, or --engine KIND and its credentials"
        raise CliError("it is not known how to reach the cluster", USAGE, hint)
    body |= {name: value for name in ("engine", "scheduler") if (value := getattr(args, name))}
    if args.dry_run:
        cluster = session.client.post("clusters", body, {"dry_run": True})
        session.output.object(cluster, f"cluster {args.name} would be checked (nothing was attached)")
        return DONE
    return _after(args, session, session.client.post("clusters", body))


def cluster_edit_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard cluster edit prod --set work_size=50Gi --unset pool_label",
        "yard cluster edit prod --kubeconfig new.yaml",
        "yard cluster edit prod --usage-half-life 24",
    ]
    parser.add_argument("name", metavar="NAME")
    _add_access(parser)
    parser.add_argument(
        "--usage-half-life",
        type=_half_life,
        metavar="HOURS",
        help="half-life in hours of a project's past use, which lowers its share of idle GPUs; 0: it does not"
        " count, default: the server's setting",
    )
    parser.add_argument(
        "--unset", action="append", metavar="KNOB", help="back to its default; repeat for more"
    )
    _add_wait(parser)


class _HalfLife(NamedTuple):
    """The value of `--usage-half-life`. `hours`: None for `default`, the server's setting. The option itself is None
    if it was not given, so that the two differ."""

    hours: int | None


def _half_life(text: str) -> _HalfLife:
    if text == "default":
        return _HalfLife(None)
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number of hours nor 'default'")
    return _HalfLife(int(text))


def cluster_edit(args: Namespace, session: Session) -> int:
    """Change a cluster, wait for its check unless --no-wait, and print the result. Exit code 1 if a check failed. An
    attached cluster keeps its settings until the new ones pass. Raise CliError (2) without a change."""
    changes = _credentials(args)
    if args.scheduler:
        changes["scheduler"] = args.scheduler
    if args.usage_half_life is not None:
        changes["usage_half_life_hours"] = args.usage_half_life.hours
    if args.set or args.unset:
        # The API replaces the settings as a whole, so the present ones are sent with the changes.
        present = session.get(_path(args.name))["settings"] or {}
        kept = {name: value for name, value in present.items() if name not in (args.unset or [])}
        changes["settings"] = {**kept, **dict(args.set or [])}
    require_changes(changes, "cluster edit")
    return _after(args, session, session.client.patch(_path(args.name), changes))


def cluster_check_arguments(parser: Parser) -> None:
    parser.examples = ["yard cluster check prod"]
    parser.add_argument("name", metavar="NAME")
    _add_wait(parser)


def cluster_check(args: Namespace, session: Session) -> int:
    """Check a cluster again, wait for the end of that unless --no-wait, and print the result. Exit code 1 if a check
    failed."""
    return _after(args, session, session.client.post(f"{_path(args.name)}/check"))


def cluster_remove_arguments(parser: Parser) -> None:
    parser.examples = ["yard cluster remove prod", "yard cluster remove prod --yes"]
    parser.add_argument("name", metavar="NAME")
    add_preview(parser, "show what would be deleted")


def cluster_remove(args: Namespace, session: Session) -> None:
    """Detach a cluster, delete its credentials and its nodes' records; refused while it has projects or unfinished
    jobs. On a terminal the user must confirm, unless --yes is given. With --dry-run change nothing."""
    cluster = session.get(_path(args.name))
    goes = f"its {cluster['nodes']} nodes leave the lists, its credentials are deleted; the cluster is not changed"
    if args.dry_run:
        session.client.delete(_path(args.name), {"dry_run": True})
        session.output.line(f"cluster {args.name} would be detached: {goes}")
        return
    if sys.stdin.isatty() and not args.yes:
        confirm_name(args.name, f"{goes}. Type the cluster's name to detach it", "detached")
    session.client.delete(_path(args.name))
    session.output.object({"name": args.name}, f"cluster {args.name} detached: {goes}")


def knob(text: str) -> tuple[str, Any]:
    """Return (name, value) for `NAME=VALUE`. A value that is valid JSON is decoded, any other is a string. Raise
    ArgumentTypeError for another form."""
    name, value = key_value(text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _add_access(parser: Parser) -> None:
    group = parser.add_argument_group("how it is reached")
    group.add_argument("--kubeconfig", metavar="FILE", help="a kubeconfig; - reads standard input")
    group.add_argument(
        "--context", dest="kube_context", metavar="C", help="the context of it (default: its current one)"
    )
    add_flag(group, "--in-cluster", about="the cluster that the server itself runs in")
    add_flag(group, "--allow-exec", about="let the kubeconfig run its login program on the server")
    group.add_argument(
        "--credential",
        action="append",
        type=_credential,
        metavar="NAME=VALUE",
        help="a credential of another kind of cluster; @FILE reads the value from a file",
    )
    group = parser.add_argument_group("how it is used")
    group.add_argument(
        "--scheduler", metavar="NAME", help="what places jobs: planner (default), or one that the kind offers"
    )
    group.add_argument(
        "--set",
        action="append",
        type=_knob_argument,
        metavar="KNOB=VALUE",
        help="a setting of the cluster, as text or JSON; repeat for more",
    )


def _add_wait(parser: Parser) -> None:
    add_flag(parser, "--no-wait", about="do not wait for the result of the check")
    add_timeout(
        parser, "time limit of the wait; exit code 7 when it passes (default 2m)", default=TIMEOUT_SECONDS
    )


def _credential(text: str) -> tuple[str, str]:
    name, value = key_value(text)
    if not value.startswith("@"):
        return name, value
    try:
        return name, Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{value[1:]} cannot be read: {error}") from error


def _knob_argument(text: str) -> tuple[str, Any]:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KNOB=VALUE")
    return knob(text)


def _credentials(args: Namespace) -> dict[str, Any]:
    """Return the credential fields of the request for the given options. Of a kubeconfig only the selected context is
    sent."""
    given: dict[str, Any] = dict(args.credential or [])
    if args.in_cluster:
        given["in_cluster"] = True
    if args.kubeconfig:
        from controlplane.cli.kubeconfig import read_context

        given["kubeconfig"] = read_context(args.kubeconfig, args.kube_context)
    if args.kube_context:
        given["context"] = args.kube_context
    if args.allow_exec:
        given["allow_exec"] = True
    return given


def _after(args: Namespace, session: Session, cluster: Row) -> int:
    """Wait for the check that a request began, unless --no-wait, and print the result. Return the exit code: FAILED
    if a check failed."""
    if args.no_wait:
        session.output.object(cluster, f"cluster {cluster['name']} is being checked")
        return DONE
    is_new = cluster["status"]["state"] == "checking"
    cluster = _looked_at(session, cluster, args.timeout)
    if is_new:
        cluster = _counted(session, cluster)
    _show(session, cluster)
    failed = [check["name"] for check in cluster["status"]["checks"] if check["outcome"] == "failed"]
    if not failed:
        return DONE
    if cluster["status"]["state"] == "attached":
        session.output.say(f"yard: {', '.join(failed)} failed; {cluster['name']} stays attached as it was")
    else:
        session.output.say(
            f"yard: {cluster['name']} was refused; correct it with yard cluster edit, or remove it"
        )
    return FAILED


def _looked_at(session: Session, cluster: Row, timeout_seconds: float) -> Row:
    deadline = time.monotonic() + timeout_seconds
    while cluster["status"]["is_checking"]:
        if time.monotonic() > deadline:
            raise CliError(
                f"{cluster['name']} is still being checked", TIMED_OUT, "see: yard describe cluster"
            )
        session.pause(POLL_SECONDS)
        cluster = session.get(_path(cluster["name"]))
    return cluster


def _counted(session: Session, cluster: Row) -> Row:
    """Return the cluster when its nodes have been counted for the first time. After COUNT_SECONDS without any, print
    that and return it as it is."""
    deadline = time.monotonic() + COUNT_SECONDS
    while _is_uncounted(cluster):
        if time.monotonic() > deadline:
            session.output.say(f"yard: no node of {cluster['name']} has been seen yet")
            break
        session.pause(POLL_SECONDS)
        cluster = session.get(_path(cluster["name"]))
    return cluster


def _is_uncounted(cluster: Row) -> bool:
    """Return whether the cluster is attached, but neither nodes nor a reason for their absence are reported yet."""
    checks = cluster["status"]["checks"]
    is_reported = any(check["outcome"] == "failed" or check["name"] == "nodes" for check in checks)
    return state_of(cluster) == "attached" and not is_reported and not cluster["nodes"]


def _show(session: Session, cluster: Row) -> None:
    if session.output.is_data:
        session.output.data(cluster)
        return
    status = cluster["status"]
    session.output.rows([cluster], CLUSTER_COLUMNS)
    if not status["is_reachable"]:
        session.output.line(f"\nNot reachable: {status['unreachable_message']}")
    # Declared nodes are counted in the row above.
    settings = [
        (name, json.dumps(value)) for name, value in (cluster["settings"] or {}).items() if name != "nodes"
    ]
    if settings:
        session.output.line("\nSettings")
        session.output.line("\n".join(f"  {name}={value}" for name, value in settings))
    if status["checks"]:
        session.output.line(f"\nChecks, {formats.ago(status['checked_at'])}")
        session.output.rows(status["checks"], CHECK_COLUMNS)


def _path(name: str) -> str:
    return f"clusters/{segment(name)}"
