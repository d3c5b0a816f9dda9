"""Format numbers, units and times for people; static/js/format.js does the same in the browser. Pure.

Three rules for numbers:

- counts and allocations (jobs, CPUs, GPUs) are exact, with at most three decimals: `number`;
- sums and means over time (GPU hours, mean GPUs) have decimals that depend on their size: `measured`;
- values of unknown range, such as a loss, have three significant figures: `figure`.

In table columns the decimal points are aligned: each value is padded to the decimals of its column, as
returned by `decimals` or `measured_decimals`, or afterwards by `lined_up`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

NOTHING = "–"
NBSP = "\u00a0"
# Spaces with the width of a point and of a digit, with which numbers of fewer decimals align with the others of their
# column.
POINT_WIDE, DIGIT_WIDE = "\u2008", "\u2007"
MOST_DECIMALS = 3
_SECOND_ZERO = re.compile(f" 0{NBSP}[smh]$")
NUMBER = re.compile(r"-?[\d,]+(\.\d+)?")


def number(value: float | None, column: int = 0) -> str:
    """Format a count: 1234.5 -> "1,234.5"; at most three decimals; a dash for None. `column`: the decimals of its
    column; missing ones are padded with blanks."""
    if value is None:
        return NOTHING
    text = f"{value:,.{MOST_DECIMALS}f}".rstrip("0").rstrip(".")
    return _filled("0" if text in ("-0", "") else text, column)


def decimals(values: Iterable[float | None]) -> int:
    """Return how many decimals a column needs to show these numbers with `number`."""
    return max((_decimals(number(value)) for value in values), default=0)


def lined_up(texts: Sequence[str]) -> list[str]:
    """Return the texts of a column, padded with blanks so that decimal points align; text without a number is
    unchanged."""
    column = max((_decimals(text) for text in texts if NUMBER.fullmatch(text)), default=0)
    return [_filled(text, column) if NUMBER.fullmatch(text) else text for text in texts]


def measured(value: float | None, column: int | None = None) -> str:
    """Format a measured value: 0.357 -> "0.36"; a positive value that rounds to 0 is "<0.01"; a dash for None.
    `column`: the decimals of its column, None to choose them by the value."""
    if value is None:
        return NOTHING
    places = measured_decimals([value]) if column is None else column
    smallest = 10.0**-places
    if 0 < value < smallest / 2:
        return f"<{smallest:.{places}f}"
    return f"{value:,.{places}f}"


def measured_decimals(values: Iterable[float | None]) -> int:
    """Return the decimals of a column of sums or means, by its largest value: 2 below 100, 1 below 1,000,
    else 0."""
    largest = max((abs(value) for value in values if value is not None), default=0)
    return 2 if largest < 100 else 1 if largest < 1000 else 0


def percent(share: float | None) -> str:
    """Format a share: 0.97 -> "97 %"; a positive share that rounds to 0 is "<1 %"; a dash for None."""
    if share is None:
        return NOTHING
    return f"{'<1' if 0 < share < 0.005 else _half_up(share * 100)}{NBSP}%"


def mebibytes(mib: float | None) -> str:
    """Format MiB in binary units: 32768 -> "32 GiB", 512 -> "512 MiB"; a dash for None."""
    if mib is None:
        return NOTHING
    return f"{number(_half_up(mib / 102.4) / 10)}{NBSP}GiB" if mib >= 1024 else f"{number(mib)}{NBSP}MiB"


def size(count: int | None) -> str:
    """Format bytes in decimal units: `512 B`, `4.2 MB`, `1.5 TB`; a dash for None."""
    if count is None:
        return NOTHING
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            text = number(int(amount)) if unit == "B" or amount >= 100 else f"{amount:.1f}"
            return f"{text}{NBSP}{unit}"
        amount /= 1000
    return f"{amount:.1f}{NBSP}TB"


def binary_size(count: int | None) -> str:
    """Format bytes in binary units: `512 B`, `4.2 MiB`, `10 GiB`; a dash for None."""
    if count is None:
        return NOTHING
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024 or unit == "PiB":
            break
        amount /= 1024
    return f"{number(round(amount, 1) if amount < 10 else round(amount))}{NBSP}{unit}"


def duration(seconds: float | None) -> str:
    """Format seconds as their one or two largest units: "41 s", "2 m 10 s", "43 m", "3 h 20 m", "2 d 4 h"; a dash
    for None."""
    if seconds is None:
        return NOTHING
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 60:
        return _units((whole, "s"))
    if whole < 600:
        return _units((minutes, "m"), (whole % 60, "s"))
    if whole < 3600:
        return _units((minutes, "m"))
    if whole < 86400:
        return _units((hours, "h"), (minutes % 60, "m"))
    return _units((days, "d"), (hours % 24, "h"))


def ago(seconds: float) -> str:
    """Format an age in seconds: "just now", "3 m ago"; without a second unit that is 0: "5 h ago"."""
    return "just now" if seconds < 5 else f"{_SECOND_ZERO.sub('', duration(seconds))} ago"


def until(seconds: float) -> str:
    """Format a time to come, in seconds: "in 3 m", "now" once it has passed."""
    return "now" if seconds < 1 else f"in {_SECOND_ZERO.sub('', duration(seconds))}"


def figure(value: float | None) -> str:
    """Format a value with three significant figures: 0.08634 -> "0.0863"; a dash for None, NaN and infinity."""
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return NOTHING
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.12f}".rstrip("0").rstrip(".") or "0"


def fraction(progress: Any) -> float | None:
    """Return a job's completed share, 0 to 1, from its progress record {"step", "total_steps", ...}; None if
    unknown."""
    if not isinstance(progress, dict) or not progress.get("total_steps") or progress.get("step") is None:
        return None
    return float(min(1.0, max(0.0, progress["step"] / progress["total_steps"])))


def rounded(value: float, places: int) -> float | int:
    """Return a number rounded to `places` decimals; a whole result as int, as JavaScript writes it: 25.0 -> 25."""
    short = round(value, places)
    return int(short) if short == int(short) else short


def _filled(text: str, column: int) -> str:
    missing = column - _decimals(text)
    if missing <= 0:
        return text
    return text + (DIGIT_WIDE * missing if "." in text else POINT_WIDE + DIGIT_WIDE * missing)


def _decimals(text: str) -> int:
    return len(text.partition(".")[2])


def _half_up(value: float) -> int:
    """Return the value rounded to a whole number, 0.5 upwards."""
    # As JavaScript's Math.round does, so that server and browser agree.
    return int(value + 0.5)


def _units(*parts: tuple[int, str]) -> str:
    return " ".join(f"{value}{NBSP}{unit}" for value, unit in parts)
