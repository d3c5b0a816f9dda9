"""Read user names and passwords of storage systems. They are read for each new connection, so that changes
apply at once and none is cached."""

import os
from collections.abc import Mapping

from datasets.storage.base import Blocked
from datasets.storage.credential_files import SectionUnreadable, default_section


def read_credentials(path: str, keys: Mapping[str, str]) -> dict[str, str]:
    """Return values from section [default] of a file, or from the environment if `path` is "". `keys`: name in the
    file -> name in the environment. Raises Blocked if the file cannot be read or a value is missing; the message
    contains no secret."""
    if not path:
        found = {key: os.environ.get(variable, "") for key, variable in keys.items()}
        where = "the environment: " + ", ".join(keys.values())
    else:
        try:
            section = default_section(path)
        except SectionUnreadable as error:
            raise Blocked("no_credentials", str(error)) from None
        found = {key: section.get(key, "") for key in keys}
        where = f"{path}, section [default]: {', '.join(keys)}"
    if not all(found.values()):
        raise Blocked("no_credentials", f"Credentials are missing in {where}.")
    return found
