"""`yard lineage`: what a job, artifact, snapshot or version was made from, and what was made from it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from controlplane.cli.commands.artifacts import stored_artifact
from controlplane.cli.commands.datasets import find_version
from controlplane.cli.commands.snapshots import find_snapshot
from controlplane.cli.errors import NOT_FOUND, CliError
from controlplane.cli.lookup import find_job
from controlplane.cli.parsing import Parser
from controlplane.cli.session import Session
from controlplane.cli.tables import Row

IDENTITY_SHOWN = 26


def lineage_arguments(parser: Parser) -> None:
    parser.examples = ["yard lineage train1", "yard lineage train1/model", "yard lineage data@3 -o json"]
    parser.add_argument(
        "name", metavar="NAME", help="JOB, JOB/ARTIFACT, VOLUME@NUMBER (a snapshot) or DATASET@VERSION"
    )


def lineage(args: Namespace, session: Session) -> None:
    """Print from what an object was made, and what was made from it."""
    _show(session, f"{_path(session, args.name)}/lineage")


def of_version_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset lineage chest-xray@3"]
    parser.add_argument("version", metavar="NAME[@VERSION]")


def of_version(args: Namespace, session: Session) -> None:
    """Print from what a version was made, and the jobs, artifacts and snapshots made from it."""
    _show(session, f"versions/{find_version(session, args.version)['id']}/lineage")


def _path(session: Session, name: str) -> str:
    """Return the API path of the object with this name; that of the snapshot if a snapshot and a version have it.
    Wait for an artifact that is being stored. Raise CliError if there is none."""
    if "@" in name:
        try:
            return f"snapshots/{find_snapshot(session, name)['id']}"
        except CliError as error:
            if error.exit_code != NOT_FOUND:
                raise
            return f"versions/{find_version(session, name)['id']}"
    if "/" in name:
        return f"artifacts/{stored_artifact(session, name)['id']}"
    return f"jobs/{find_job(session, name)['id']}"


def _show(session: Session, path: str) -> None:
    graph: Row = session.get(path)
    if session.output.is_data:
        session.output.data(graph)
        return
    for line in _lines(graph):
        session.output.line(line)
    if graph["is_cut"]:
        session.output.say("there is more: see the lineage of one of the jobs")


def _lines(graph: Row) -> Iterator[str]:
    """Yield a line for each object of the graph with its sources indented below it. An object without sources has a
    line of its own only if it is no source of another."""
    nodes = {one["key"]: one for one in graph["nodes"]}
    for one in graph["nodes"]:
        sources = [edge for edge in graph["edges"] if edge["target"] == one["key"]]
        is_named = any(edge["source"] == one["key"] for edge in graph["edges"])
        if not sources and is_named:
            continue
        yield _line(one)
        for edge in sources:
            role = f" ({edge['role']})" if edge["role"] else ""
            yield f"  <- {_line(nodes[edge['source']])}{role}"


def _line(one: Row) -> str:
    identity = one["identity"] or ""
    short = identity if len(identity) <= IDENTITY_SHOWN else f"{identity[: IDENTITY_SHOWN - 3]}..."
    return " ".join(filter(None, (one["kind"], one["name"], short, one["detail"] and f"- {one['detail']}")))
