"""Print rows as a table: aligned plain text into a pipe, with `rich` on a terminal (imported only then)."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TextIO

from controlplane.cli import formats
from controlplane.unsafe_text import visible

Row = dict[str, Any]

# One colour per outcome on terminals; the word is always shown too, because colours are not seen by all
# users.
STATE_STYLES = {
    "running": "green",
    "starting": "cyan",
    "scaling": "cyan",
    "queued": "yellow",
    "suspended": "yellow",
    "stopping": "yellow",
    "succeeded": "green",
    "failed": "red",
    "timed_out": "red",
    "stopped": "bright_black",
    "ready": "green",
    "cordoned": "yellow",
    "not_ready": "red",
    "ok": "green",
    "attached": "green",
    "checking": "cyan",
    "warning": "yellow",
    "unreachable": "red",
    "refused": "red",
}


class Column(NamedTuple):
    """A column of a table. `cell`: returns a row's value; `is_wide`: only `-o wide` shows the column; `is_number`:
    aligned to the right."""

    heading: str
    cell: Callable[[Row], object]
    is_wide: bool = False
    is_number: bool = False


def status_of(row: Row) -> Row:
    """Return the `status` of an object in REST form; {} if it has none."""
    status: Row = row.get("status") or {}
    return status


def trouble_of(row: Row) -> str:
    """Return a line about why a row's object failed or waits, "" without a reason. For Output.objects."""
    status = status_of(row)
    return f"{row['name']} {status['state']}: {status['message']}" if status.get("reason") else ""


# Columns that several lists have.
AGE = Column("AGE", lambda row: formats.age(row["created_at"]))
FILES = Column("FILES", lambda row: f"{row['files']:,}", is_number=True)
ID = Column("ID", lambda row: row["id"], is_wide=True)
STATE = Column("STATE", lambda row: row["status"]["state"])


def write_table(stream: TextIO, columns: Sequence[Column], rows: Sequence[Row], *, styled: bool) -> None:
    """Write the rows as a table with headings. `styled`: with colour, by `rich` if that is installed; for terminals."""
    cells = [[_cell_text(column.cell(row)) for column in columns] for row in rows]
    if styled and _write_rich(stream, columns, cells):
        return
    stream.write(plain_table(columns, cells))


def plain_table(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> str:
    """Return a table as text: columns separated by two spaces, numbers aligned to the right, no spaces at the ends of
    lines. `cells`: the texts of each row."""
    grid = [[column.heading for column in columns], *cells]
    widths = [max(map(_width, column)) for column in zip(*grid, strict=True)]
    lines = (
        "  ".join(
            _padded(cell, width, column) for cell, width, column in zip(row, widths, columns, strict=True)
        )
        for row in grid
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _write_rich(stream: TextIO, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> bool:
    """Write the table by `rich`. Return False, with nothing written, if `rich` is not installed."""
    import shutil

    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        # `yard` needs only the standard library; rich is optional.
        return False
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in row))
    # With --watch the stream only collects the answer, so read the size of the real terminal.
    width = shutil.get_terminal_size().columns
    Console(file=stream, highlight=False, force_terminal=True, width=width).print(table)
    return True


def _cell_text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    # A tab would move the rest of its row.
    return visible(f"{value:g}" if isinstance(value, float) else str(value)).replace("\t", "^I")


def _padded(cell: str, width: int, column: Column) -> str:
    room = " " * (width - _width(cell))
    return room + cell if column.is_number else cell + room


def _width(text: str) -> int:
    """Return how many terminal columns the text takes: two for a wide East Asian character, none for a combining
    mark."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
