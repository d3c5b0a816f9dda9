"""Commands for API tokens: list, create, revoke."""

from __future__ import annotations

from argparse import Namespace

from controlplane.cli import formats
from controlplane.cli.client import segment
from controlplane.cli.confirmation import add_needless_yes
from controlplane.cli.parsing import Parser, add_flag, given
from controlplane.cli.session import Session
from controlplane.cli.tables import Column

TOKEN_COLUMNS = (
    Column("ID", lambda row: row["id"]),
    Column("NAME", lambda row: row.get("name")),
    Column("USER", lambda row: row.get("user")),
    Column("READ-ONLY", lambda row: row.get("is_read_only")),
    Column("CREATED", lambda row: formats.local_time(row.get("created_at"))),
    Column("LAST-USED", lambda row: formats.local_time(row.get("last_used_at"))),
    Column("EXPIRES", lambda row: formats.local_time(row.get("expires_at"))),
)


def list_tokens_arguments(parser: Parser) -> None:
    parser.examples = ["yard list tokens"]


def list_tokens(args: Namespace, session: Session) -> None:
    """Print the user's tokens, for an admin those of all users, without their secrets."""
    session.show_list("tokens", TOKEN_COLUMNS, 500)


def token_create_arguments(parser: Parser) -> None:
    parser.examples = ["yard token create ci", "yard token create ci -o jsonpath={.token}"]
    parser.add_argument("name", metavar="NAME", help="what it is for")
    parser.add_argument("--days", type=int, metavar="N", help="how long it is valid")
    add_flag(parser, "--read-only", about="a read-only token")
    parser.add_argument("--user", metavar="NAME", help="create it for another user (admins)")


def token_create(args: Namespace, session: Session) -> None:
    """Create a token and print its secret, which the server shows only this once."""
    options = {"days": args.days, "is_read_only": args.read_only or None, "user": args.user}
    body = {"name": args.name, **given(options)}
    token = session.client.post("tokens", body)
    session.output.object(token, str(token["token"]))
    if not session.output.is_data:
        session.output.say("keep it now: it is not shown again")


def token_revoke_arguments(parser: Parser) -> None:
    parser.examples = ["yard token revoke 3"]
    parser.add_argument("id", metavar="ID", help="an id that `yard list tokens` shows")
    add_needless_yes(parser)


def token_revoke(args: Namespace, session: Session) -> None:
    """Revoke a token, which is invalid from then on."""
    session.output.object(session.client.delete(f"tokens/{segment(args.id)}"), f"token {args.id} revoked")
