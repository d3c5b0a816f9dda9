"""`yard config`: the default server and project."""

from __future__ import annotations

from argparse import Namespace

from controlplane.cli.errors import USAGE, CliError
from controlplane.cli.parsing import Parser
from controlplane.cli.session import Session
from controlplane.cli.tables import Column

CONTEXT_COLUMNS = (
    Column("CURRENT", lambda row: "*" if row["current"] else ""),
    Column("NAME", lambda row: row["name"]),
    Column("URL", lambda row: row["url"]),
    Column("PROJECT", lambda row: row["project"]),
    Column("LOGGED-IN", lambda row: row["logged_in"]),
)


def config_project_arguments(parser: Parser) -> None:
    parser.examples = ["yard config project team-a", "yard config project"]
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="the project; without it the current one is printed"
    )


def config_project(args: Namespace, session: Session) -> None:
    """Store a name as the default project of the context in use, without checking that the project exists. Without a
    name print the project in use; raise CliError if there is none."""
    if not args.name:
        session.output.object({"project": session.project}, session.project)
        return
    session.config.choose_project(args.name)
    session.output.object({"project": args.name}, f"project {args.name} is now the default without -p")


def config_contexts_arguments(parser: Parser) -> None:
    parser.examples = ["yard config contexts"]


def config_contexts(args: Namespace, session: Session) -> None:
    """Print every context of the config file, without tokens."""
    config = session.config
    rows = [
        {
            "name": name,
            "url": context.get("url", ""),
            "project": context.get("project", ""),
            "logged_in": bool(context.get("token")),
            "current": name == config.context_name,
        }
        for name, context in sorted(config.file["contexts"].items())
    ]
    session.output.objects({"results": rows, "next": None, "previous": None}, CONTEXT_COLUMNS)


def config_use_arguments(parser: Parser) -> None:
    parser.examples = ["yard config use gpu-lab"]
    parser.add_argument("name", metavar="CONTEXT", help="a name that `yard config contexts` shows")


def config_use(args: Namespace, session: Session) -> None:
    """Make a context the current one, in the config file. Raise CliError (2) if the file has no such context."""
    known = session.config.file["contexts"]
    if args.name not in known:
        raise CliError(f"no context {args.name!r}", USAGE, f"known: {', '.join(sorted(known)) or 'none yet'}")
    session.config.update_context(args.name, {})
    session.output.object({"context": args.name}, f"now using {args.name}: {known[args.name].get('url', '')}")
