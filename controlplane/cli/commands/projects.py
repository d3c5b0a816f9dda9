"""Commands for projects: list, describe, create, edit, delete, members."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from typing import Any

from controlplane.cli import formats
from controlplane.cli.client import segment
from controlplane.cli.confirmation import add_preview, confirm_name
from controlplane.cli.errors import CONFLICT, DONE, require_changes
from controlplane.cli.lookup import project_path
from controlplane.cli.parsing import Parser, decimal_number, duration_seconds, positive_number
from controlplane.cli.session import Session
from controlplane.cli.tables import Column, Row, status_of

ROLES = ("owner", "member", "viewer")
# The word for null: --gpu-limit none.
_NONE = "none"


PROJECT_COLUMNS = (
    Column("NAME", lambda row: row["name"]),
    Column("QUOTA", lambda row: formats.gpus(row.get("gpu_quota")), is_number=True),
    Column("ALLOCATED", lambda row: formats.gpus(status_of(row).get("allocated_gpus")), is_number=True),
    Column("OVER-QUOTA", lambda row: formats.gpus(status_of(row).get("over_quota_gpus")), is_number=True),
    Column("FAIR-SHARE", lambda row: formats.gpus(status_of(row).get("fair_share_gpus")), is_number=True),
    Column("RUNNING", lambda row: status_of(row).get("running_jobs"), is_number=True),
    Column("QUEUED", lambda row: status_of(row).get("queued_jobs"), is_number=True),
    Column("WEIGHT", lambda row: formats.gpus(row.get("over_quota_weight")), is_wide=True, is_number=True),
    Column("LIMIT", lambda row: formats.gpus(row.get("gpu_limit")), is_wide=True, is_number=True),
    Column("PRIORITY", lambda row: row.get("priority"), is_wide=True, is_number=True),
    Column("CLUSTER", lambda row: row.get("cluster"), is_wide=True),
    Column("DESCRIPTION", lambda row: row.get("description"), is_wide=True),
)
MEMBER_COLUMNS = (Column("USER", lambda row: row["user"]), Column("ROLE", lambda row: row["role"]))


def list_projects_arguments(parser: Parser) -> None:
    parser.examples = ["yard list projects", "yard list projects -o wide --watch"]
    parser.add_argument(
        "--limit", type=positive_number, default=500, metavar="N", help="at most N projects (default 500)"
    )


def list_projects(args: Namespace, session: Session) -> None:
    """List the projects that the user may view, at most --limit."""
    session.show_list("projects", PROJECT_COLUMNS, args.limit)


def describe_project_arguments(parser: Parser) -> None:
    parser.examples = ["yard describe project team-a", "yard describe project -o yaml"]
    parser.add_argument("name", metavar="NAME", nargs="?", help="the project (default: the one in use)")


def describe_project(args: Namespace, session: Session) -> None:
    """Print one project with its members. Raise ApiError if the user may not view it."""
    project = session.get(project_path(args.name or session.project))
    session.output.object(project, formats.fields(_project_fields(project)))


def project_create_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard project create team-a --gpu-quota 4",
        "yard project create team-b --gpu-quota 2 --member ana:owner",
    ]
    parser.add_argument("name", metavar="NAME", help="a DNS label of at most 50 characters")
    parser.add_argument(
        "--member", action="append", type=_member, metavar="USER:ROLE", help="a first member; repeat for more"
    )
    parser.add_argument(
        "--cluster", metavar="CLUSTER", help="where its jobs run (default: the first cluster)"
    )
    _add_fields(parser)


def project_create(args: Namespace, session: Session) -> None:
    """Create a project and print it, with the server's warnings."""
    body = {"name": args.name, **_fields(args)}
    if args.cluster:
        body["cluster"] = args.cluster
    if args.member:
        body["members"] = [{"user": user, "role": role} for user, role in args.member]
    project = session.client.post("projects", body)
    _report(session, project, f"project {args.name} created on cluster {project['cluster']}")


def project_edit_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard project edit team-a --gpu-quota 6",
        "yard project edit team-a --gpu-limit none",
        "yard project edit team-a --cluster prod --dry-run",
        "yard project edit team-a --cluster prod --yes",
    ]
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        help="move it there; only while it has no jobs; its namespace on the old cluster is deleted with its contents",
    )
    add_preview(parser, "show what a move would delete")
    _add_fields(parser)


def project_edit(args: Namespace, session: Session) -> None:
    """Change the given fields of a project. If it moves to another cluster and content is deleted there, the user
    must confirm on a terminal, unless --yes is given. With --dry-run change nothing."""
    changes = require_changes(_fields(args) | _given({"cluster": args.cluster}), "project edit")
    path = project_path(args.name)
    lost = _lost_by_moving(session, path, args.cluster)
    if lost and sys.stdin.isatty() and not (args.yes or args.dry_run):
        confirm_name(args.name, f"The move removes {lost}.\nType the project's name to move it", "moved")
    query = {"dry_run": True} if args.dry_run else None
    verb = "would change" if args.dry_run else "changed"
    words = f"project {args.name} {verb}" + (f"; the move removes {lost}" if lost else "")
    _report(session, session.client.patch(path, changes, query=query), words)


def _lost_by_moving(session: Session, path: str, cluster: str | None) -> str:
    """Return what moving a project to `cluster` deletes in its present cluster, as part of a sentence; "" if nothing,
    or if the project does not move."""
    if cluster is None:
        return ""
    taken = session.client.delete(path, {"dry_run": True})
    return "" if taken["cluster"] == cluster else _namespace(taken)


def project_delete_arguments(parser: Parser) -> None:
    parser.examples = ["yard project delete team-a --dry-run", "yard project delete team-a --yes"]
    parser.add_argument("name", metavar="NAME")
    add_preview(parser, "show what would be deleted")


def project_delete(args: Namespace, session: Session) -> int:
    """Delete a project with its finished jobs. On a terminal the user must confirm, unless --yes is given. With
    --dry-run delete nothing. The server refuses while jobs are unfinished."""
    path = project_path(args.name)
    is_asking = sys.stdin.isatty() and not args.yes
    if args.dry_run or is_asking:
        taken = session.client.delete(path, {"dry_run": True})
        if args.dry_run:
            return _would_delete(session, taken)
        question = f"Deleted with it: {along(taken)}.\nType the project's name to delete it"
        confirm_name(args.name, question, "deleted")
    taken = session.client.delete(path)
    session.output.object(taken, f"project {args.name} deleted with {along(taken)}")
    return DONE


def _would_delete(session: Session, taken: Row) -> int:
    """Print what a deletion would do, and return its exit code: 5 if jobs are unfinished, else 0. `taken`: the
    response to its dry run."""
    is_refused = taken["unfinished_jobs"] > 0
    words = "cannot be deleted yet; it would go with" if is_refused else "would be deleted with"
    session.output.object(taken, f"project {taken['project']} {words} {along(taken)}")
    return CONFLICT if is_refused else DONE


def along(taken: Row) -> str:
    """Return as text what is deleted with a project. `taken`: the response to the deletion or its dry run."""
    parts = [
        f"{taken['finished_jobs']} finished jobs and their logs",
        f"{taken['working_directories']} working directories",
        f"{taken['members']} memberships",
    ]
    if taken["unfinished_jobs"]:
        parts.insert(0, f"{taken['unfinished_jobs']} unfinished jobs (stop them first)")
    if namespace := _namespace(taken):
        parts.append(namespace)
    return ", ".join(parts)


def _namespace(taken: Row) -> str:
    if not taken["namespace"]:
        return ""
    words = f"the namespace {taken['namespace']} on {taken['cluster']}, if it is Trainyard's, with everything in it"
    return (
        words if taken.get("is_reachable", True) else f"{words} (it stays until {taken['cluster']} answers)"
    )


def project_members_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard project members team-a",
        "yard project members team-a --add ana:owner --add ben:member",
        "yard project members team-a --remove chi",
    ]
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--add", action="append", type=_member, metavar="USER:ROLE", help=f"roles: {', '.join(ROLES)}"
    )
    parser.add_argument("--remove", action="append", metavar="USER", help="remove a user; repeat for more")


def project_members(args: Namespace, session: Session) -> None:
    """Add, change and remove members as the options say, then list all members."""
    path = f"{project_path(args.name)}/members"
    for user, role in args.add or []:
        session.client.post(path, {"user": user, "role": role})
    for user in args.remove or []:
        session.client.delete(f"{path}/{segment(user)}")
    session.show_list(path, MEMBER_COLUMNS, 500)


def add_share(parser: Parser) -> None:
    """Declare the options for the quota, weight, limit and priority of a project or department."""
    number = _or_none(decimal_number)
    parser.add_argument("--gpu-quota", type=decimal_number, metavar="GPUS", help="guaranteed GPUs")
    parser.add_argument(
        "--over-quota-weight",
        type=number,
        metavar="W",
        help="weight for idle GPUs above the quota; 0: none of them, none: as large as the quota",
    )
    parser.add_argument("--gpu-limit", type=number, metavar="GPUS", help="never more than this, or none")
    parser.add_argument(
        "--priority", type=int, metavar="N", help="a higher one gets idle GPUs above the quota first"
    )


def share_fields(args: Namespace) -> dict[str, Any]:
    """Return the request's fields for the given options of `add_share`."""
    return _given(
        {
            "gpu_quota": args.gpu_quota,
            "over_quota_weight": args.over_quota_weight,
            "gpu_limit": args.gpu_limit,
            "priority": args.priority,
        }
    )


def _add_fields(parser: Parser) -> None:
    seconds = _or_none(duration_seconds)
    parser.add_argument("--description", metavar="TEXT")
    parser.add_argument("--department", metavar="NAME", help="the department that it belongs to, or none")
    add_share(parser)
    parser.add_argument(
        "--node-pools",
        action="append",
        type=_pools,
        metavar="KIND=POOL[,POOL]",
        help="train=dgx, interactive=",
    )
    parser.add_argument(
        "--interactive-max", type=seconds, metavar="TIME", help="how long an interactive job may run, or none"
    )
    parser.add_argument(
        "--interactive-idle", type=seconds, metavar="TIME", help="how long it may be idle, or none"
    )


def _fields(args: Namespace) -> dict[str, Any]:
    return share_fields(args) | _given(
        {
            "description": args.description,
            "department": args.department,
            "node_pools": dict(args.node_pools) if args.node_pools else None,
            "interactive_max_seconds": args.interactive_max,
            "interactive_idle_seconds": args.interactive_idle,
        }
    )


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value == _NONE else value for name, value in fields.items() if value is not None}


def _or_none(read: Any) -> Any:
    """Return an argument type that parses a text by `read`. The word `none` is returned unchanged, for `_given` to
    convert to null."""

    def value(text: str) -> Any:
        return _NONE if text == _NONE else read(text)

    value.__name__ = "value"
    return value


def _member(text: str) -> tuple[str, str]:
    user, colon, role = text.rpartition(":")
    if not colon or not user or role not in ROLES:
        raise argparse.ArgumentTypeError(f"{text!r} is not USER:ROLE with a role of {', '.join(ROLES)}")
    return user, role


def _pools(text: str) -> tuple[str, list[str]]:
    kind, equals, pools = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KIND=POOL[,POOL]")
    return kind, [pool for pool in pools.split(",") if pool]


def _report(session: Session, project: dict[str, Any], summary: str) -> None:
    session.output.object(project, summary)
    for warning in project.get("warnings") or []:
        session.output.say(f"warning: {warning}")


def _recent_usage(part: float | None) -> str | None:
    return None if part is None else f"{100 * part:.0f} % of the cluster"


def _project_fields(project: Row) -> list[tuple[str, object]]:
    status = status_of(project)
    return [
        ("Name", project["name"]),
        ("Description", project.get("description")),
        ("Department", project.get("department")),
        ("Cluster", project.get("cluster")),
        ("Namespace", status.get("namespace")),
        ("GPU quota", formats.gpus(project.get("gpu_quota"))),
        ("Over-quota weight", formats.gpus(project.get("over_quota_weight")) or "as the quota"),
        ("GPU limit", formats.gpus(project.get("gpu_limit")) or "none"),
        ("Priority", project.get("priority")),
        ("Node pools", _pools_text(project.get("node_pools"))),
        ("Interactive limit", formats.duration(project.get("interactive_max_seconds"))),
        ("Interactive idle limit", formats.duration(project.get("interactive_idle_seconds"))),
        ("Allocated GPUs", formats.gpus(status.get("allocated_gpus"))),
        ("Fair share", formats.gpus(status.get("fair_share_gpus"))),
        ("Recent usage", _recent_usage(status.get("recent_usage"))),
        ("Requested GPUs", formats.gpus(status.get("requested_gpus"))),
        ("Jobs running", status.get("running_jobs")),
        ("Jobs queued", status.get("queued_jobs")),
        (
            "Members",
            ", ".join(f"{member['user']} ({member['role']})" for member in project.get("members") or []),
        ),
    ]


def _pools_text(pools: dict[str, list[str]] | None) -> str:
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in (pools or {}).items() if names)
