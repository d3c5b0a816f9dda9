"""Commands for departments: list, create, edit, delete. `yard project edit --department` moves a project into
one."""

from __future__ import annotations

from argparse import Namespace

from controlplane.cli import formats
from controlplane.cli.client import segment
from controlplane.cli.commands.projects import add_share, share_fields
from controlplane.cli.confirmation import add_needless_yes
from controlplane.cli.errors import require_changes
from controlplane.cli.parsing import Parser
from controlplane.cli.session import Session
from controlplane.cli.tables import Column

DEPARTMENT_COLUMNS = (
    Column("NAME", lambda row: row["name"]),
    Column("QUOTA", lambda row: formats.gpus(row.get("gpu_quota")), is_number=True),
    Column("WEIGHT", lambda row: formats.gpus(row.get("over_quota_weight")), is_number=True),
    Column("LIMIT", lambda row: formats.gpus(row.get("gpu_limit")), is_number=True),
    Column("PRIORITY", lambda row: row.get("priority"), is_number=True),
    Column("PROJECTS", lambda row: ", ".join(row["projects"])),
)


def list_departments_arguments(parser: Parser) -> None:
    parser.examples = ["yard list departments"]


def list_departments(args: Namespace, session: Session) -> None:
    """Print every department with its projects."""
    session.show_list("departments", DEPARTMENT_COLUMNS)


def department_create_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard department create research --gpu-quota 12",
        "yard project edit team-a --department research",
    ]
    parser.add_argument("name", metavar="NAME", help="a DNS label of at most 50 characters")
    add_share(parser)


def department_create(args: Namespace, session: Session) -> None:
    """Create an empty department."""
    made = session.client.post("departments", {"name": args.name, **share_fields(args)})
    session.output.object(made, f"department {args.name} created")


def department_edit_arguments(parser: Parser) -> None:
    parser.examples = ["yard department edit research --gpu-quota 16 --gpu-limit none"]
    parser.add_argument("name", metavar="NAME")
    add_share(parser)


def department_edit(args: Namespace, session: Session) -> None:
    """Change the given fields of a department."""
    changes = require_changes(share_fields(args), "department edit")
    changed = session.client.patch(f"departments/{segment(args.name)}", changes)
    session.output.object(changed, f"department {args.name} changed")


def department_delete_arguments(parser: Parser) -> None:
    parser.examples = ["yard department delete research"]
    parser.add_argument("name", metavar="NAME")
    add_needless_yes(parser)


def department_delete(args: Namespace, session: Session) -> None:
    """Delete a department; refused while it has projects."""
    session.client.delete(f"departments/{segment(args.name)}")
    session.output.object({"name": args.name}, f"department {args.name} deleted")
