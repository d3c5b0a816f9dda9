"""How the user confirms a command that destroys something: by the option `--yes`, or by a name typed on a terminal."""

import sys
from argparse import Namespace

from controlplane.cli.errors import USAGE, CliError
from controlplane.cli.parsing import Parser


def add_yes(parser: Parser) -> None:
    help_text = "confirm the deletion; without this option nothing is deleted"
    parser.add_argument("-y", "--yes", action="store_true", help=help_text)


def require_yes(args: Namespace, lost: str, command: str) -> None:
    """Raise CliError (2) unless the user gave `--yes`. `lost`: a sentence about what the command destroys; `command`:
    the command line that the message shows for confirmation."""
    if not args.yes:
        raise CliError(lost, USAGE, f"to delete it: {command} --yes")


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
