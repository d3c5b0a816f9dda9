"""How the user confirms a command that destroys something: by the option `--yes`, or by a name typed on a terminal."""

import sys
from argparse import Namespace

from controlplane.cli.errors import USAGE, CliError
from controlplane.cli.parsing import Parser, add_flag
from controlplane.cli.session import Session


def add_yes(parser: Parser) -> None:
    help_text = (
        "confirm the deletion; without it the command asks on a terminal, and elsewhere deletes nothing"
    )
    add_flag(parser, "-y", "--yes", about=help_text)


def add_needless_yes(parser: Parser) -> None:
    """Accept `--yes` for a command that deletes without a question, so that a script may give it to every command that
    deletes."""
    help_text = "accepted, as by all commands that delete; this one asks nothing"
    add_flag(parser, "-y", "--yes", about=help_text)


def delete_confirmed(
    args: Namespace,
    session: Session,
    kind: str,
    name: str,
    path: str,
    *,
    lost: str = "",
    done: str = "deleted",
) -> None:
    """Delete the object at the API path and print it, if the user gave `--yes`, or types `name` on a terminal. Raise
    CliError otherwise: on a terminal (1) and elsewhere (2). `kind` and `name`: as in `yard KIND delete NAME`; `lost`: a
    sentence about what is destroyed; `done`: what has become of it."""
    if not args.yes:
        lost = lost or f"{name} cannot be restored"
        if not sys.stdin.isatty():
            raise CliError(lost, USAGE, f"to delete it: yard {kind} delete {name} --yes")
        confirm_name(name, f"{lost}. Type its name to delete it", "deleted")
    session.output.object(session.client.delete(path), f"{kind} {name} {done}")


def add_preview(parser: Parser, shows: str) -> None:
    """Declare `--dry-run` and `--yes`, for commands that ask the user on a terminal. `shows`: what --dry-run shows,
    for the help."""
    add_flag(parser, "--dry-run", about=f"{shows}, change nothing; same exit code")
    add_flag(parser, "-y", "--yes", about="do not ask on a terminal")


def confirm_name(name: str, question: str, done: str) -> None:
    """Ask `question` on standard error, and read the answer from standard input. Raise CliError unless it is `name`.
    `done`: what was not done then, as a participle (`deleted`)."""
    print(f"{question} ({name}): ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise CliError(f"nothing was {done}")
