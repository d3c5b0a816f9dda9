"""Notations of durations, sizes, numbers and pairs, in `yard` and in forms, and of lists in messages. No I/O; readers
raise ValueError."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

DURATION, SIZE, NUMBER, PAIR = (
    "a duration such as 90s, 10m, 1h30m or 2d",
    "a size such as 512Mi or 16Gi",
    "a number",
    "NAME=VALUE",
)
_DURATION_PART = re.compile(r"\s*(\d+)\s*([smhd]?)\s*", re.IGNORECASE)
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1, "": 1}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([MGT])(?:iB?)?)?")
_MIB = {"T": 1024 * 1024, "G": 1024, "M": 1, None: 1}
# The items of a list that a message names, so that it stays readable.
_SHOWN = 5


def parse_duration(text: str) -> int:
    """Return a duration in seconds. Units are s, m, h and d; a number without a unit is in seconds; parts are added:
    "1h 30m" -> 5400. Raise ValueError for other texts and for ""."""
    total, position = 0, 0
    while not position or position < len(text):
        match = _DURATION_PART.match(text, position)
        if match is None:
            raise ValueError(text)
        total += int(match[1]) * _SECONDS[match[2].lower()]
        position = match.end()
    return total


def write_duration(seconds: int | None) -> str:
    """Return seconds in the largest unit that divides them: 5400 -> "90m"; "" for None."""
    if seconds is None:
        return ""
    unit = next(unit for unit in _SECONDS if seconds % _SECONDS[unit] == 0)
    return f"{seconds // _SECONDS[unit]}{unit}"


def parse_size(text: str) -> int:
    """Return a size in MiB: "512" and "512Mi" -> 512, "1.5G" -> 1536. Raise ValueError for any other text."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return round(float(match[1]) * _MIB[match[2]])


def write_size(mib: int) -> str:
    """Return MiB as text, without a change of unit: 512 -> "512Mi", 2048 -> "2048Mi"."""
    return f"{mib}Mi"


def decimal_bytes(count: int) -> str:
    """Format bytes in powers of 1000, as pages and `yard` show the sizes of data: `512 B`, `4.2 MB`, `679 MB`. Amounts
    of 100 and more are rounded down."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    is_whole = unit == "B" or (amount >= 100 and unit != "TB")
    return f"{int(amount)} {unit}" if is_whole else f"{amount:.1f} {unit}"


def binary_bytes(count: int) -> str:
    """Format bytes in powers of 1024, as limits and volumes have them: `512 B`, `4.2 MiB`, `10 GiB`."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024 or unit == "PiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if amount == int(amount) or unit == "B" else f"{amount:.1f} {unit}"


def parse_number(text: str) -> int | float:
    """Return the number in `text`: an int if it is whole, else a float. Raise ValueError for other texts, infinity
    and NaN."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    # A long whole number would lose digits as a float.
    return int(text) if text.strip().isdecimal() else int(number) if number.is_integer() else number


def write_number(number: float) -> str:
    """Return a number with at most 10 significant digits: 0.5 -> "0.5", 2.0 -> "2"."""
    return f"{number:.10g}"


def parse_speeds(text: str) -> dict[str, float]:
    """Return speeds by number of workers: "1=6.0,2=8.6" -> {"1": 6.0, "2": 8.6}; {} for an empty text. Raise
    ValueError for a malformed pair or speed. The numbers of workers are not checked."""
    pairs = [parse_pair(part.strip()) for part in text.split(",")] if text.strip() else []
    return {workers: float(speed) for workers, speed in pairs}


def parse_pair(text: str) -> tuple[str, str]:
    """Return (name, value) of "NAME=VALUE", blanks included. The value may contain `=` or be empty. Raise ValueError
    without `=` or without a name."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(text)
    return name, value


def decimal(milli: int) -> int | float:
    """Return thousandths as a decimal number, an int if it is whole: 1500 -> 1.5."""
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def some_of(items: Sequence[Any], show: Callable[[Any], str] = str) -> str:
    """Return a list for a message, the first five items in full: `a, b, c, d, e and 7 more`; "" for an empty list."""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(map(show, items[:_SHOWN])) + more
