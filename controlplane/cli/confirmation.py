"""How the user confirms a command that destroys something: by the option `--yes`, or by a name typed on a terminal."""

import sys
from argparse import Namespace

from controlplane.cli.errors import USAGE, CliError
from controlplane.cli.parsing import Parser


def add_yes(parser: Parser) -> None:
    help_text = (
        "confirm the deletion; without it the command asks on a terminal, and elsewhere deletes nothing"
    )
    parser.add_argument("-y", "--yes", action="store_true", help=help_text)


def add_needless_yes(parser: Parser) -> None:
    """Accept `--yes` for a command that deletes without a question, so that a script may give it to every command that
    deletes."""
    help_text = "accepted, as by all commands that delete; this one asks nothing"
    parser.add_argument("-y", "--yes", action="store_true", help=help_text)


def require_yes(args: Namespace, name: str, lost: str, command: str) -> None:
    """Return if the user gave `--yes`, or types `name` on a terminal. Raise CliError otherwise: on a terminal (1) and
    elsewhere (2). `lost`: a sentence about what the command destroys; `command`: the command line without the name, for
    the message."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise CliError(lost, USAGE, f"to delete it: {command} {name} --yes")
    confirm_name(name, f"{lost}. Type its name to delete it", "deleted")


def add_preview(parser: Parser, shows: str) -> None:
    """Declare `--dry-run` and `--yes`, for commands that ask the user on a terminal. `shows`: what --dry-run shows,
    for the help."""
    parser.add_argument("--dry-run", action="store_true", help=f"{shows}, change nothing; same exit code")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask on a terminal")


def confirm_name(name: str, question: str, done: str) -> None:
    """Ask `question` on standard error, and read the answer from standard input. Raise CliError unless it is `name`.
    `done`: what was not done then, as a participle (`deleted`)."""
    print(f"{question} ({name}): ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise CliError(f"nothing was {done}")
