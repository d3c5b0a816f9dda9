"""`yard top`: GPU usage by job or node."""

from __future__ import annotations

from argparse import Namespace

from controlplane.cli import formats
from controlplane.cli.commands.jobs import NAME, PROJECT, nodes_text, requested_gpus
from controlplane.cli.commands.nodes import NODE_COLUMNS
from controlplane.cli.parsing import Parser, add_flag
from controlplane.cli.session import Session
from controlplane.cli.tables import Column, status_of

TOP_JOB_COLUMNS = (
    NAME,
    PROJECT,
    Column("USER", lambda row: row.get("user")),
    Column("GPUS", requested_gpus, is_number=True),
    Column("UTIL", lambda row: formats.percent(status_of(row).get("gpu_utilization")), is_number=True),
    Column("NODE", nodes_text),
    Column("RUNTIME", lambda row: formats.duration(status_of(row).get("runtime_seconds")), is_number=True),
    Column("PROGRESS", lambda row: formats.progress(status_of(row).get("progress"))),
)


def top_jobs_arguments(parser: Parser) -> None:
    parser.examples = ["yard top jobs", "yard top jobs -p team-a --watch"]
    add_flag(
        parser,
        "-A",
        "--all-projects",
        "--all-namespaces",
        about="jobs of every project that you may see (the default without -p)",
    )


def top_jobs(args: Namespace, session: Session) -> None:
    """Print the running jobs, those with the most GPUs first, at most the 500 newest. With -p only those of that
    project, else those of all projects that the user may view."""
    path = f"{session.project_path}/jobs" if args.project and not args.all_projects else "jobs"
    page = session.client.pages(path, {"state": "running,scaling"}, 500)
    page["results"].sort(key=lambda row: -(row.get("gpus") or 0) * (row.get("workers") or 1))
    session.output.objects(page, TOP_JOB_COLUMNS)


def top_nodes_arguments(parser: Parser) -> None:
    parser.examples = ["yard top nodes", "yard top nodes --watch"]


def top_nodes(args: Namespace, session: Session) -> None:
    """Print all nodes with their GPUs and, except in a data format (-o json), how many GPUs are allocated in total."""
    page = session.client.pages("nodes", {}, 10_000)
    session.output.objects(page, NODE_COLUMNS)
    if not session.output.is_data:
        total = sum(node.get("gpus") or 0 for node in page["results"])
        allocated = sum(node.get("allocated_gpus") or 0 for node in page["results"])
        session.output.line(f"\n{formats.gpus(allocated)} of {formats.gpus(total)} GPUs allocated")
