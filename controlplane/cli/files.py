"""Files that a command line names, read whole; "-" is standard input."""

from __future__ import annotations

import os
import sys
from typing import Any

from controlplane.cli.errors import USAGE, CliError


def read_text(path: str) -> str:
    """Return the text of a file. Raises CliError (2) when it cannot be read."""
    try:
        if path == "-":
            return sys.stdin.read()
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path} cannot be read: {error}", USAGE) from error


def parse_yaml(text: str, what: str, hint: str) -> Any:
    """Return the value of a YAML text. Raises ValueError when it is none, and CliError (2) where there is no PyYAML
    to read `what` with; `hint`: how to do without.
    """
    try:
        import yaml
    except ImportError as error:
        raise CliError(f"reading {what} needs PyYAML: pip install pyyaml", USAGE, hint) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        # The error's own words would quote the text.
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"it is not YAML near line {mark.line + 1}" if mark else "it is not YAML") from error
