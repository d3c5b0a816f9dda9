"""The option `--yes` of commands that delete what cannot be restored."""

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
