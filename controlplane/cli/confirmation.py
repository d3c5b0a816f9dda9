"""How the user confirms a command that destroys something: by the option `--yes`, or by a name typed on a terminal."""

import sys
from argparse import Namespace

from controlplane.cli.errors import USAGE, CliError
from controlplane.cli.parsing import Parser


def add_yes(parser: Parser) -> None:
    """Declare the option `--yes`."""
    help_text = "confirm the deletion; without this option nothing is deleted"
    parser.add_argument("-y", "--yes", action="store_true", help=help_text)


def require_yes(args: Namespace, lost: str, command: str) -> None:
    """Raise CliError (2) unless the user gave `--yes`. `lost`: a sentence on what the command destroys;
    `command`: the command line to repeat."""
    if not args.yes:
        raise CliError(lost, USAGE, f"to delete it: {command} --yes")


def add_preview(parser: Parser, shows: str) -> None:
    """Declare the options of commands that ask on a terminal: `--yes`, and `--dry-run`. `shows`: what the latter
    shows, for its help."""
    parser.add_argument("--dry-run", action="store_true", help=f"{shows}, change nothing; same exit code")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask on a terminal")


def confirm_name(name: str, question: str, done: str) -> None:
    """Ask `question` on standard error; the user confirms by typing `name`. Raises CliError for any other answer.
    `done`: what the command does, as a participle for the message."""
    print(f"{question} ({name}): ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise CliError(f"nothing was {done}")
