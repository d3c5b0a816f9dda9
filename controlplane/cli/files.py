"""Read files named on the command line; "-" is standard input."""

from __future__ import annotations

import os
import sys
from typing import Any

from controlplane.cli.errors import USAGE, CliError


def read_text(path: str) -> str:
    """Return the text of a file; `path` "-" is standard input. Raise CliError (2) if the file cannot be read or is
    not UTF-8."""
    try:
        if path == "-":
            return sys.stdin.read()
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path} cannot be read: {error}", USAGE) from error


def parse_yaml(text: str, what: str, hint: str) -> Any:
    """Return the value of a YAML text. Raise ValueError if the text is invalid, CliError (2) if PyYAML is not
    installed. `what`, `hint`: the name of the content and a hint, for the CliError."""
    try:
        import yaml
    except ImportError as error:
        raise CliError(f"reading {what} needs PyYAML: pip install pyyaml", USAGE, hint) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        # PyYAML's own message would quote the text, which may contain secrets.
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"it is not YAML near line {mark.line + 1}" if mark else "it is not YAML") from error
