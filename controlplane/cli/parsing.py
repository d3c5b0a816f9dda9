"""Argument parser of one command: argparse with examples first, without abbreviations, and with suggestions
for typing errors."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from controlplane import notation
from controlplane.cli.errors import USAGE, CliError


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A help formatter for the terminal's width. argparse's own finds that by `shutil`, whose import of compression
    modules would slow down every start."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


class Parser(argparse.ArgumentParser):
    """The parser of one command. `summary`: a line on what the command does; `takes_command`: it accepts a command
    line after `--`; `examples`: command lines for the top of its help."""

    def __init__(self, prog: str, summary: str, takes_command: bool = False) -> None:
        super().__init__(
            prog=prog, description=summary, add_help=False, allow_abbrev=False, formatter_class=_Formatter
        )
        self.examples: list[str] = []
        self._takes_command = takes_command

    def add_common(self) -> None:
        """Add the options that all commands have. Call it last: the help lists options in the order in which they
        were added."""
        group = self.add_argument_group("common options")
        group.add_argument(
            "-p", "--project", metavar="NAME", help="the project (default: see `yard config project`)"
        )
        group.add_argument(
            "-o",
            "--output",
            metavar="FORMAT",
            default="table",
            help="table, wide, json, yaml or jsonpath=PATH",
        )
        group.add_argument(
            "--watch", action="store_true", help="keep running and show changes as they happen"
        )
        # `cluster add` has a --context of its own, that of a kubeconfig.
        if "--context" in self.flags():
            self.set_defaults(context=None)
        else:
            group.add_argument("--context", metavar="NAME", help="a server you logged in to, by name")
        group.add_argument("-h", "--help", action="help", help="show this help")

    def format_help(self) -> str:
        """Return the examples, then the help of argparse."""
        lines = "".join(f"  {example}\n" for example in self.examples)
        usage = super().format_help()
        if self._takes_command:
            head, newline, rest = usage.partition("\n\n")
            usage = f"{head} [-- COMMAND ...]{newline}{rest}"
        return f"examples:\n{lines}\n{usage}" if lines else usage

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the parsed words. Raise CliError (2) for wrong words; for an unknown option the message suggests the
        most similar one. With --help, print the help and raise SystemExit."""
        # Intermixed: options may stand between the positional arguments.
        parsed, unknown = self.parse_known_intermixed_args(list(words))
        if unknown:
            self._refuse(unknown)
        return parsed

    def flags(self) -> list[str]:
        """Return the option strings, such as `--watch`, of all options that the help shows."""
        shown = (action for action in self._actions if action.help != argparse.SUPPRESS)
        return [flag for action in shown for flag in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Raise CliError (2) with the message, and with the command's help as hint."""
        raise CliError(
            f"{self.prog.removeprefix('yard ')}: {message}",
            USAGE,
            f"see: yard help {self.prog.removeprefix('yard ')}",
        )

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        flag = unknown[0].partition("=")[0]
        near = nearest(flag, self.flags()) if flag.startswith("-") else ""
        self.error(f"does not know {unknown[0]!r}" + (f", did you mean {near}?" if near else ""))


def add_job(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the job's name, or its id")


def add_flag(to: argparse._ActionsContainer, *names: str, about: str) -> None:
    """Declare an option without a value in a parser or group: True if it is given."""
    to.add_argument(*names, action="store_true", help=about)


def add_timeout(to: argparse._ActionsContainer, about: str, default: int | None = None) -> None:
    """Declare `--timeout`, a duration, in a parser or group."""
    to.add_argument("--timeout", type=duration_seconds, default=default, metavar="TIME", help=about)


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields whose value is not None: those whose options the user gave."""
    return {name: value for name, value in fields.items() if value is not None}


def nearest(word: str, known: Sequence[str]) -> str:
    """Return the most similar word of `known`; "" if none is similar."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, n=1, cutoff=0.6)), "")


def glue_values(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the words with each flag of `flags` joined to the word after it: `--args --lr=1` as `--args=--lr=1`.
    argparse would read a value that begins with a dash as an option."""
    glued: list[str] = []
    for word in words:
        if glued and glued[-1] in flags:
            glued[-1] = f"{glued[-1]}={word}"
        else:
            glued.append(word)
    return glued


def argument(parse: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    """Return an argument type for argparse that parses a text by `parse`. If that raises ValueError, the user gets
    the message "... is not `what`"."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None

    return read


duration_seconds = argument(notation.parse_duration, notation.DURATION)


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _named_directory(text: str) -> str:
    # `Path("")` is the current directory, which an empty variable of a script does not mean.
    if not text:
        raise ValueError(text)
    return text


positive_number = argument(_positive, "a whole number above 0")
directory_path = argument(_named_directory, "the path of a directory")
decimal_number = argument(notation.parse_number, notation.NUMBER)
key_value = argument(notation.parse_pair, notation.PAIR)


def _columns() -> int:
    """Return the width of the help in columns: the variable COLUMNS, else the terminal's width, else 80."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isdecimal() and int(stated) > 0:
        return int(stated)
    try:
        return os.get_terminal_size().columns or 80
    except OSError:
        # Standard output is not a terminal.
        return 80
