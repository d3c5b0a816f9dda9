"""Read a program's settings from arguments, which take precedence, and environment variables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


class Settings(argparse.ArgumentParser):
    """Argument parser in which each option is also a variable: `--batch-size` is BATCH_SIZE."""

    def add(self, name: str, default: str, read: Callable[[str], object] = str, text: str = "") -> None:
        """Add an option `name`. Its default is the environment variable of that name, else the text `default`.
        `read` converts the text to a value; `text`: its help."""
        variable = name.upper().replace("-", "_")
        value = os.environ.get(variable, default)
        words = f"{text} ({default})" if default else text
        self.add_argument(f"--{name}", type=read, default=value, metavar=variable, help=words)


def flag(text: str) -> bool:
    """Return `true` or `false`, in the usual spellings, as a bool. Raises ArgumentTypeError for other text, which
    argparse shows as the option's error."""
    if text.lower() not in TRUE + FALSE:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in TRUE


def positive(text: str) -> int:
    """Return a whole number of at least 1. Raises ArgumentTypeError for other text, which argparse shows as the
    option's error."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return int(text)


def count(text: str) -> int:
    """Return a whole number of at least 0. Raises ArgumentTypeError for other text, which argparse shows as the
    option's error."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 or more")
    return int(text)
