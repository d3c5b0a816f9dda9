"""Write gaps into a copied log: output that is missing or may be, recorded before the lines that follow
it."""

from __future__ import annotations

from controlplane.engines.kubernetes.log_cursor import Piece, time_of
from controlplane.engines.kubernetes.log_target import WantedLog
from controlplane.logstore.writer import LogWriter

_NEW_FILE = "the node began a new file then"
MAY_BE_GONE = "the node may have begun a new file before this was read"


class LogStoreBusy(Exception):
    """Another process wrote to the file since the last read."""


def check_alone(writer: LogWriter) -> None:
    """Raise LogStoreBusy if another process wrote to the file; the caller reads its end again."""
    if writer.has_grown():
        raise LogStoreBusy("another process wrote to the log")


def add(writer: LogWriter, entry: WantedLog, pieces: list[Piece]) -> None:
    """Write new lines, with a gap before the first line of each new file of the node."""
    while entry.new_files:
        at = next((i for i, piece in enumerate(pieces) if piece[0] >= entry.new_files[0]), None)
        if at is None:
            break
        writer.add(pieces[:at])
        _tell_first(writer, entry)
        pieces = pieces[at:]
    writer.add(pieces)


def tell_new_files(writer: LogWriter, entry: WantedLog) -> None:
    while entry.new_files:
        _tell_first(writer, entry)


def _tell_first(writer: LogWriter, entry: WantedLog) -> None:
    tell_gap(writer, entry, before_ms=entry.new_files[0], why=_NEW_FILE)
    del entry.new_files[0]


def tell_gap(writer: LogWriter, entry: WantedLog, *, before_ms: int, why: str) -> None:
    check_alone(writer)
    writer.gap(f"output may be missing before {time_of(before_ms)}: {why}")
    entry.size = writer.size
