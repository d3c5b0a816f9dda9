"""Arguments of one command: argparse with examples first, no abbreviations, and suggestions for a near miss."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import NoReturn

from controlplane.cli.errors import USAGE, CliError

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?\Z")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(Mi|MiB|M|Gi|GiB|G|Ti|TiB|T)?\Z")
_MIB_PER_UNIT = {"M": 1, "G": 1024, "T": 1024 * 1024}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Read the terminal's width without `shutil`, which would load the compression modules at every start."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


class Parser(argparse.ArgumentParser):
    """One command's parser. `examples` are shown before everything else."""

    def __init__(self, prog: str, summary: str, takes_command: bool = False) -> None:
        super().__init__(
            prog=prog,
            description=summary,
            add_help=False,
            allow_abbrev=False,
            formatter_class=_Formatter,
        )
        self.examples: list[str] = []
        self._takes_command = takes_command

    def add_common(self) -> None:
        """The options that every command takes, last so that help shows a command's own first."""
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
        group.add_argument("--watch", action="store_true", help="stay and show changes as they happen")
        # A command's own: its server is the one in use.
        if "--context" in self.flags():
            self.set_defaults(context=None)
        else:
            group.add_argument("--context", metavar="NAME", help="a server you logged in to, by name")
        group.add_argument("-h", "--help", action="help", help="show this help")

    def format_help(self) -> str:
        """Examples, then argparse's help."""
        lines = "".join(f"  {example}\n" for example in self.examples)
        usage = super().format_help()
        if self._takes_command:
            head, newline, rest = usage.partition("\n\n")
            usage = f"{head} [-- COMMAND ...]{newline}{rest}"
        return f"examples:\n{lines}\n{usage}" if lines else usage

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the parsed words; a word that is not understood is an error that names the nearest flag."""
        parsed, unknown = self.parse_known_intermixed_args(list(words))
        if unknown:
            self._refuse(unknown)
        return parsed

    def flags(self) -> list[str]:
        """Return every option string that help shows, for suggestions and completion."""
        shown = (action for action in self._actions if action.help != argparse.SUPPRESS)
        return [flag for action in shown for flag in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Usage errors end with exit code 2 and point to the help."""
        raise CliError(
            f"{self.prog.removeprefix('yard ')}: {message}",
            USAGE,
            f"see: yard help {self.prog.removeprefix('yard ')}",
        )

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        flag = unknown[0].partition("=")[0]
        near = nearest(flag, self.flags()) if flag.startswith("-") else ""
        self.error(f"does not know {unknown[0]!r}" + (f", did you mean {near}?" if near else ""))


def nearest(word: str, known: Sequence[str]) -> str:
    """Return the known word that `word` is most likely a slip of, or empty."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, n=1, cutoff=0.6)), "")


def glue_values(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """`--args --lr=1` as `--args=--lr=1`: what follows such a flag is its value even when it begins with a dash."""
    glued: list[str] = []
    for word in words:
        if glued and glued[-1] in flags:
            glued[-1] = f"{glued[-1]}={word}"
        else:
            glued.append(word)
    return glued


def duration_seconds(text: str) -> int:
    """Parse a duration (`90`, `90s`, `10m`, `1h30m`, `2d`) to seconds; for use as an argument type."""
    if text.isdecimal():
        return int(text)
    match = _DURATION.match(text)
    if not text or match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 10m, 1h30m or 2d")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def memory_mib(text: str) -> int:
    """`512`, `512Mi`, `16Gi`, `1.5G` as MiB; for use as an argument type."""
    match = _MEMORY.match(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512Mi or 16Gi")
    return round(float(match[1]) * _MIB_PER_UNIT[(match[2] or "M")[0]])


def decimal_number(text: str) -> int | float:
    """Return a count with a fraction (`0.5`, `2`) as the JSON number that says the same."""
    try:
        number = float(text)
        return int(number) if number.is_integer() else number
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def key_value(text: str) -> tuple[str, str]:
    """`KEY=VALUE` as a pair."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _columns() -> int:
    """Return the width that help is wrapped at: COLUMNS, else the terminal's, else 80."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isdecimal() and int(stated) > 0:
        return int(stated)
    try:
        return os.get_terminal_size().columns or 80
    except OSError:
        # Standard output is no terminal.
        return 80
