"""Read files in the format of ~/.aws/credentials. Imports only the standard library, as the settings need."""

import configparser
from collections.abc import Mapping
from pathlib import Path


class SectionUnreadable(ValueError):
    """The file has no readable section [default]. The message names the file and quotes nothing of it."""


def default_section(path: str) -> Mapping[str, str]:
    """Return the keys of a file's section [default], in lower case. Raise SectionUnreadable if there is none or the
    file cannot be read."""
    # Raw, because a secret may contain "%".
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(Path(path).read_text())
        return parser["default"]
    except (OSError, UnicodeError, configparser.Error, KeyError) as error:
        kind = type(error).__name__
        detail = f"{path} cannot be read as a credentials file with a section [default] ({kind})."
        # Not chained, because the parser's message quotes the file.
        raise SectionUnreadable(detail) from None
