"""Commands for users, for admins: list, create."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from controlplane.cli.errors import USAGE, CliError
from controlplane.cli.parsing import Parser, add_flag
from controlplane.cli.session import Session
from controlplane.cli.tables import Column

USER_COLUMNS = (
    Column("USERNAME", lambda row: row["username"]),
    Column("ADMIN", lambda row: row.get("is_admin")),
    Column("ACTIVE", lambda row: row.get("is_active")),
    Column("EMAIL", lambda row: row.get("email"), is_wide=True),
)


def list_users_arguments(parser: Parser) -> None:
    parser.examples = ["yard list users"]


def list_users(args: Namespace, session: Session) -> None:
    """Print all users; for admins only."""
    session.show_list("users", USER_COLUMNS)


def user_create_arguments(parser: Parser) -> None:
    parser.examples = ["yard user create ana", "yard user create ana --admin --password-stdin < password"]
    parser.add_argument("username", metavar="USERNAME")
    add_flag(parser, "--admin", about="a site admin")
    add_flag(parser, "--password-stdin", about="read the password from standard input")


def user_create(args: Namespace, session: Session) -> None:
    """Create a user; for admins only. The password is asked for on the terminal, or read from standard input with
    --password-stdin."""
    body: dict[str, Any] = {"username": args.username, "password": _password(args)}
    if args.admin:
        body["is_admin"] = True
    session.output.object(session.client.post("users", body), f"user {args.username} created")


def _password(args: Namespace) -> str:
    if args.password_stdin:
        return sys.stdin.readline().rstrip("\n")
    if not sys.stdin.isatty():
        raise CliError("standard input is not a terminal", USAGE, "give --password-stdin")
    import getpass

    return getpass.getpass(f"Password for {args.username}: ", stream=sys.stderr)
