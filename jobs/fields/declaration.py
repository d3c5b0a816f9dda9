"""What a field of a job is declared with. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from controlplane.api.json_schema import Schema
from controlplane.fields import Reader
from jobs.fields.values import Value

# Headings of the options in `yard help submit`.
PROGRAM, PODS, DATA, POLICY = "what runs", "what each pod gets", "data and ports", "how it is scheduled"
# Parts of the submit form; its template has the headings.
TOP, RUNS, NEEDS, WRITES, MORE = "top", "runs", "needs", "writes", "more"
# Characters that the form accepts in one field; longer text is refused unread, because splitting a command takes time
# that grows with the square of its longest word.
SHORT, LONG = 1024, 16 * 1024


class Flag(NamedTuple):
    """An option of `yard submit`: its names and the word for its value, such as "-i --image IMAGE". `help` "": the
    field's own text. `sets`: keys of the entry that it gives. Of several flags, the last is shown whose `sets` and
    whose beginning, `begins`, an entry has. `is_hidden`: taken, but in no help.
    """

    spelling: str
    help: str = ""
    is_required: bool = False
    begins: str = ""
    sets: Mapping[str, Any] = {}
    is_hidden: bool = False

    @property
    def names(self) -> list[str]:
        """Return the names, the short one first."""
        return [word for word in self.spelling.split() if word.startswith("-")]

    @property
    def metavar(self) -> str | None:
        """Return the word for the value; None for a switch."""
        last = self.spelling.split()[-1]
        return None if last.startswith("-") else last


class Entries(NamedTuple):
    """What an option, and with a label a checkbox `name` of the form, sets in all entries of a list: `key` to `on`,
    else to `off`. An option with a word for its value sets that.
    """

    name: str
    key: str
    off: Any
    on: Any = True
    flag: Flag | None = None
    label: str = ""


class Input(NamedTuple):
    """A field of the submit form; those with the same row of a section stand beside one another. `choices`: of a
    select. `offers`: the page's list of more choices, or of suggestions. `initial`: instead of the field's default.
    """

    label: str
    section: str
    row: int
    help: str = ""
    choices: tuple[tuple[str, str], ...] | None = None
    offers: str = ""
    initial: str = ""


class Field(NamedTuple):
    """A field of a job.

    `about`: what it does, in `yard help`, the API's document and docs/reference/jobs.md. `omitted`: the default, as
    JSON. `kind_default`: the attribute of the job's kind that has the default. `commands`: the flags of a command of
    `yard` that spells it in its own way. `pod`: the attribute of an engine's PodSpec that has the value unchanged.
    """

    name: str
    about: str
    value: Value
    omitted: Any = None
    kind_default: str = ""
    is_required: bool = False
    group: str = POLICY
    flags: tuple[Flag, ...] = ()
    commands: Mapping[str, tuple[Flag, ...]] = {}
    entries: Entries | None = None
    input: Input | None = None
    pod: str = ""

    @property
    def read(self) -> Reader:
        """Read JSON; raises Refused."""
        return self.value.read

    @property
    def default(self) -> Any:
        """Return the default as a spec stores it."""
        return None if self.omitted is None else self.read(self.omitted)

    @property
    def sentence(self) -> str:
        """Return `about` as a sentence."""
        return f"{self.about[0].upper()}{self.about[1:]}."

    @property
    def schema(self) -> Schema:
        """Return the JSON schema of a submission's field."""
        described = {**self.value.schema, "description": self.sentence}
        return described if self.omitted is None else described | {"default": self.omitted}

    @property
    def most_characters(self) -> int:
        """Return how much text the form accepts."""
        return LONG if self.value.schema.get("type") in ("array", "object") else SHORT

    def flags_of(self, command: str) -> tuple[Flag, ...]:
        """Return the flags of a command such as "submit-mpi"."""
        return self.commands.get(command, self.flags)
