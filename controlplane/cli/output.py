"""Print a command's answer in the format of -o: table, wide, json, yaml, jsonpath=...

Data goes to standard output and messages to standard error, so that a pipe contains only data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from controlplane.cli import terminal
from controlplane.cli.errors import USAGE, CliError
from controlplane.unsafe_text import visible

if TYPE_CHECKING:
    from controlplane.cli.tables import Column, Row

TROUBLES_SHOWN = 3
FORMATS = ("table", "wide", "json", "yaml")
JSONPATH = "jsonpath="
# JSON does not escape DEL, C1 and bidirectional characters, which a terminal would interpret.
_UNSAFE_IN_JSON = "[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"


class Output:
    """Writes results to `stream` and messages to `stderr`. `form`: the format, the value of -o; `environ`: decides
    about colour."""

    def __init__(self, form: str, environ: dict[str, str], stream: TextIO, stderr: TextIO) -> None:
        self.form = form
        self.stream = stream
        self._stderr = stderr
        # JSON on one line, so that the answers of a stream can be separated.
        self.is_line_per_answer = False
        self.is_terminal = stream.isatty()
        self.is_coloured = terminal.is_coloured(environ, self.is_terminal)

    @property
    def is_data(self) -> bool:
        """Return whether the format is for programs (json, yaml, jsonpath)."""
        return self.form not in ("table", "wide")

    def objects(
        self, page: dict[str, Any], columns: Sequence[Column], trouble: Callable[[Row], str] | None = None
    ) -> None:
        """Print a list. `page`: the list in REST form, which a data format prints whole; a table shows its rows in
        these columns. `trouble`: returns a line about a row's problem, "" for none; for lists that show it only with
        -o wide. The first few are said after the table."""
        if self.is_data:
            self.data(page)
            return
        self.rows(page["results"], columns)
        found = [line for row in page["results"] if (line := trouble(row))] if trouble else []
        if self.form == "wide":
            return
        for line in found[:TROUBLES_SHOWN]:
            self.say(line)
        if (left := len(found) - TROUBLES_SHOWN) > 0:
            self.say(f"{left} more have a problem: -o wide shows every message")

    def rows(self, rows: Sequence[Row], columns: Sequence[Column]) -> None:
        """Print rows as a table. Only -o wide shows the columns with `is_wide`."""
        from controlplane.cli.tables import write_table

        shown = [column for column in columns if self.form == "wide" or not column.is_wide]
        write_table(self.stream, shown, rows, styled=self.is_coloured)

    def object(self, document: Any, summary: str) -> None:
        """Print one object: `document` in a data format, else the text `summary`. Nothing is printed for an empty
        summary."""
        if self.is_data:
            self.data(document)
        elif summary:
            self.line(summary)

    def data(self, document: Any) -> None:
        """Print the document in the data format of -o: YAML, jsonpath, else JSON. Raise CliError (2) for a malformed
        jsonpath."""
        if self.form == "yaml":
            from controlplane.cli import yaml_dump

            self.stream.write(yaml_dump.dump(document))
        elif self.form.startswith(JSONPATH):
            self._jsonpath(document)
        else:
            self.stream.write(as_json(document, indent=None if self.is_line_per_answer else 2) + "\n")

    def line(self, text: str) -> None:
        """Print a line to standard output, with control characters escaped."""
        self.stream.write("\n".join(map(visible, text.split("\n"))) + "\n")

    def say(self, text: str) -> None:
        """Write a message to standard error, after all output that was printed before."""
        self.flush()
        self.aside(text)

    def aside(self, text: str) -> None:
        """Write a message to standard error at once, also while output is still buffered. Thread-safe."""
        # In one call, so that the lines of several threads do not mix.
        print("\n".join(map(visible, text.split("\n"))) + "\n", end="", file=self._stderr, flush=True)

    def status(self, text: str) -> None:
        """Show the text on standard error in place of the last one; "" removes it. Does nothing unless standard error
        is a terminal."""
        if self._stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=self._stderr, flush=True)

    def flush(self) -> None:
        self.stream.flush()

    def _jsonpath(self, document: Any) -> None:
        from controlplane.cli import jsonpath

        text = jsonpath.render(self.form.removeprefix(JSONPATH), document)
        self.stream.write(text if text.endswith("\n") else text + "\n")


def as_json(document: Any, indent: int | None = None) -> str:
    """Return the document as JSON. Characters that a terminal would interpret are escaped. `indent`: blanks per
    level, None for one line."""
    import json
    import re

    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return re.sub(_UNSAFE_IN_JSON, lambda match: f"\\u{ord(match.group()):04x}", text)


def checked_format(text: str) -> str:
    """Return the value of -o unchanged. Raise CliError (2) if it is no known format."""
    if text in FORMATS or text.startswith(JSONPATH):
        return text
    raise CliError(f"-o {text}: no such format", USAGE, f"one of: {', '.join(FORMATS)}, jsonpath=PATH")


def standard_output(form: str, environ: dict[str, str]) -> Output:
    """Return an Output to the standard streams of this process. `form`: the value of -o; `environ`: for colour."""
    return Output(form, environ, sys.stdout, sys.stderr)
