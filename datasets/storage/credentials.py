"""Names and passwords of storage systems: read when a connection is opened, so that a changed one is used at once and
none is kept."""

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

from datasets.storage.base import Blocked


def read_credentials(path: str, keys: Mapping[str, str]) -> dict[str, str]:
    """Return values by the names in a file's section [default], or in the environment without a path. `keys`: names in
    the file, and those in the environment. Raises Blocked; no message has a secret."""
    if not path:
        found = {key: os.environ.get(variable, "") for key, variable in keys.items()}
        where = "the environment: " + ", ".join(keys.values())
    else:
        section = _section(path)
        found = {key: section.get(key, "") for key in keys}
        where = f"{path}, section [default]: {', '.join(keys)}"
    if not all(found.values()):
        raise Blocked("no_credentials", f"Credentials are missing in {where}.")
    return found


def _section(path: str) -> Mapping[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(Path(path).read_text())
        return parser["default"]
    except (OSError, UnicodeError, configparser.Error, KeyError) as error:
        # the text of a parser's error quotes the file
        kind = type(error).__name__
        detail = f"{path} cannot be read as a credentials file with a section [default] ({kind})."
        raise Blocked("no_credentials", detail) from None
