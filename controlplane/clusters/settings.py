"""Parts for declaring the settings of a cluster: a knob, readers of its value, and the error that lists all
refused settings. No I/O."""

import re
from typing import Any, NamedTuple

from controlplane.fields import FieldError, Names, Reader, Refused, matching

LABEL_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
SUBDOMAIN = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
QUALIFIED_NAMES = Names(re.compile(rf"(?:{SUBDOMAIN}/)?{LABEL_NAME}"), 317, "like vendor.com/thing")
LABEL_VALUE = re.compile(rf"(?:{LABEL_NAME})?")
QUANTITY = re.compile(r"[1-9][0-9]*(?:[MGTP]i?|Ki|k)?")
IMAGE_CHARS = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./:@]*")
IMAGE_NAMES = Names(IMAGE_CHARS, 200, "like team/image:1")
# The prefix of projects' namespaces if the cluster's settings give none.
NAMESPACE_PREFIX = "yard-"
MOUNT_PATHS = Names(re.compile(r"/[-A-Za-z0-9_./]+"), 1000, "an absolute path of plain characters")


class SettingsInvalid(ValueError):
    """Invalid cluster settings. `errors`: one per setting, with its JSON pointer and the next step."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("; ".join(f"{error.pointer}: {error.detail}" for error in errors))
        self.errors = errors


class Knob(NamedTuple):
    """One cluster setting: the reader of its value, its default, and one sentence for the reference documentation."""

    read: Reader
    default: Any
    text: str


def name_like(pattern: re.Pattern[str], longest: int, what: str) -> Reader:
    """Return a reader of strings of at most `longest` characters that match the whole pattern. It raises Refused for
    others; `what` describes valid strings in the message."""
    return matching(pattern, longest, "bad_name", f"This must be {what}.")


def one_of(*choices: str) -> Reader:
    """Return a reader that accepts only these strings, and raises Refused for any other value."""

    def read(value: Any) -> str:
        if value not in choices:
            raise Refused(
                "unknown_choice", f"This is one of: {', '.join(repr(choice) for choice in choices)}."
            )
        return str(value)

    return read


def or_empty(reader: Reader) -> Reader:
    """Return a reader that accepts "" and passes other values to `reader`."""
    return lambda value: "" if value == "" else reader(value)


qualified_name = name_like(QUALIFIED_NAMES.pattern, QUALIFIED_NAMES.longest, "a name like nvidia.com/gpu")
label_value = name_like(LABEL_VALUE, 63, "a label value")
object_name = name_like(re.compile(SUBDOMAIN), 253, "the name of an object in the cluster")
image = name_like(IMAGE_CHARS, 500, "an image reference like registry.example/team/image:1")
quantity = name_like(QUANTITY, 16, "a quantity like 20Gi")
mount_path = name_like(MOUNT_PATHS.pattern, MOUNT_PATHS.longest, MOUNT_PATHS.words)
