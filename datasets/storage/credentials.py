"""Read user names and passwords of storage systems. They are read for each new connection, so that changes
apply at once and none is cached."""

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

from datasets.storage.base import Blocked


def read_credentials(path: str, keys: Mapping[str, str]) -> dict[str, str]:
    """Return values from section [default] of a file, or from the environment if `path` is "". `keys`: name
    in the file -> name in the environment. Raises Blocked; its message contains no secret."""
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
    # Raw, because a password may contain "%".
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(Path(path).read_text())
        return parser["default"]
    except (OSError, UnicodeError, configparser.Error, KeyError) as error:
        # The parser's error message quotes the file, so it is not included.
        kind = type(error).__name__
        detail = f"{path} cannot be read as a credentials file with a section [default] ({kind})."
        raise Blocked("no_credentials", detail) from None
