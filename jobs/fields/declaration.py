"""The types with which a job field is declared. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from controlplane.api.json_schema import Schema
from controlplane.fields import Reader
from jobs.fields.values import Value

# Headings that group the options in `yard help submit`.
PROGRAM, PODS, DATA, POLICY = "what runs", "what each pod gets", "data and ports", "how it is scheduled"
# Sections of the submit form; the template has their headings.
TOP, RUNS, NEEDS, READS, WRITES, MORE = "top", "runs", "needs", "reads", "writes", "more"
# Limits on the text of one form field. Longer text is refused before it is parsed, because splitting a
# command takes time quadratic in its longest word.
SHORT, LONG = 1024, 16 * 1024


class Flag(NamedTuple):
    """An option of `yard submit`. `spelling`: its names and the placeholder of its value, such as "-i --image
    IMAGE". `help`: "" for the field's own text. `sets`: keys of the list entry that the option adds. To print
    an entry, the last flag is used whose `sets` match the entry and whose `begins` is a prefix of its text.
    `is_hidden`: accepted but not listed in help."""

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
        """Return the placeholder of the value; None for a switch."""
        last = self.spelling.split()[-1]
        return None if last.startswith("-") else last


class Entries(NamedTuple):
    """A switch that sets `key` in all entries of a list field (`ports`, `datasets`, `artifacts`): to `on` if given,
    else to `off`. `flag`: its option of `yard submit`; one that takes a value sets `key` to that value. `label`: of its
    checkbox in the submit form."""

    name: str
    key: str
    off: Any
    on: Any = True
    flag: Flag | None = None
    label: str = ""


class Input(NamedTuple):
    """A field of the submit form. Inputs with the same row number of a section share a line. `choices`: those
    of a select. `choices_from`: the name of a list of the page ("images", "pools", "kinds") that adds choices
    to a select, or suggestions to a text field. `initial`: replaces the field's default."""

    label: str
    section: str
    row: int
    help: str = ""
    choices: tuple[tuple[str, str], ...] | None = None
    choices_from: str = ""
    initial: str = ""


class Field(NamedTuple):
    """A field of a job.

    `about`: its description in `yard help`, the OpenAPI document and docs/reference/jobs.md. `omitted`: the default,
    as JSON. `kind_default`: the attribute of the job's kind that holds the default. `group`: the heading under which
    `yard help` lists it. `commands`: flags of `yard` commands that spell the field differently. `pod`: the attribute
    of an engine's PodSpec that receives the value unchanged.
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
        """Return the reader that converts submitted JSON to the stored value; it raises Refused."""
        return self.value.read

    @property
    def default(self) -> Any:
        """Return the default in stored form."""
        return None if self.omitted is None else self.read(self.omitted)

    @property
    def sentence(self) -> str:
        """Return `about` as a sentence, with capital and full stop."""
        return f"{self.about[0].upper()}{self.about[1:]}."

    @property
    def schema(self) -> Schema:
        """Return the JSON schema of the field in a submission."""
        described = {**self.value.schema, "description": self.sentence}
        return described if self.omitted is None else described | {"default": self.omitted}

    @property
    def most_characters(self) -> int:
        """Return the longest text that the form accepts for this field, in characters."""
        return LONG if self.value.schema.get("type") in ("array", "object") else SHORT

    def flags_of(self, command: str) -> tuple[Flag, ...]:
        """Return the field's flags for a command such as "submit-mpi"."""
        return self.commands.get(command, self.flags)
