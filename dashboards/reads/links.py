"""Bandwidth between the nodes of a job, from the output of workloads/allreduce."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from django.conf import settings
from django.utils.translation import gettext as _

from controlplane.logstore.reader import log_path, tail
from jobs.models import Job

# Lines read from the end of the log, where pairs are printed; 16 nodes have 120 pairs.
LINES_MOST = 200
NAMES_MOST = 16
LEVELS = 10
# Limit in GB/s; larger values are errors of the program.
LEAST_RATE, MOST_RATE = 1e-9, 1e9


@dataclass(frozen=True, slots=True)
class Cell:
    """The bandwidth between two nodes. `text`: "" if it was not measured; `level`: tenths of the fastest pair's
    bandwidth."""

    text: str = ""
    level: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One node and its bandwidth to all nodes, in the order of the grid's names."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Bandwidths of all pairs of nodes. `summary`: a sentence with the slowest and the fastest pair."""

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    summary: str


def link_grid(job: Job) -> Grid | None:
    """Return the bandwidths that the newest attempt of a job measured; None if it measured none."""
    lines = tail(log_path(settings.LOG_DIR, str(job.pk), max(1, job.attempt), 0), LINES_MOST).lines
    return grid_of(line.text for line in lines)


def grid_of(lines: Iterable[str]) -> Grid | None:
    """Return the grid of the lines that describe a pair of nodes, for the first NAMES_MOST nodes that they name; None
    if no line does. Ignores other lines."""
    rates = dict(found for line in lines if (found := _pair(line)) is not None)
    names = tuple(dict.fromkeys(name for pair in rates for name in pair))[:NAMES_MOST]
    rates = {pair: rate for pair, rate in rates.items() if set(pair) <= set(names)}
    if not rates:
        return None
    fastest = max(rates.values())
    both_ways = rates | {(second, first): rate for (first, second), rate in rates.items()}
    rows = tuple(
        Row(name, tuple(_cell(both_ways.get((name, other)), fastest) for other in names)) for name in names
    )
    return Grid(names, rows, _summary(rates))


def _cell(rate: float | None, fastest: float) -> Cell:
    return Cell() if rate is None else Cell(_short(rate), round(LEVELS * rate / fastest))


def _summary(rates: dict[tuple[str, str], float]) -> str:
    slow, fast = (choose(rates, key=lambda pair: rates[pair]) for choose in (min, max))
    return _(
        "GB/s of the all-reduce between one worker of each. Slowest: %(slow)s, %(slow_rate)s; fastest: %(fast)s,"
        " %(fast_rate)s."
    ) % {
        "slow": " – ".join(slow),
        "slow_rate": _short(rates[slow]),
        "fast": " – ".join(fast),
        "fast_rate": _short(rates[fast]),
    }


def _pair(line: str) -> tuple[tuple[str, str], float] | None:
    """Return a line's nodes and rate as (nodes, GB/s); None for any other line."""
    if not line.startswith('{"allreduce_pair"'):
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # A user's program printed the line, so everything in it is validated.
    pair, rate = fields.get("allreduce_pair"), fields.get("bus_gb_per_s")
    is_pair = isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair)
    is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and LEAST_RATE < rate < MOST_RATE
    if not is_pair or not is_rate:
        return None
    # JSON can escape lone surrogates, which cannot be encoded in a page.
    first, second = (name.encode(errors="ignore").decode()[:63] for name in pair)
    return (first, second), float(rate)


def _short(rate: float) -> str:
    """Format a rate with three digits: `0.0123`, `2.40`, `11.0`, `1,240`."""
    if rate < 1:
        return f"{rate:.3g}"
    decimals = 2 if rate < 10 else 1 if rate < 100 else 0
    return f"{rate:,.{decimals}f}"
