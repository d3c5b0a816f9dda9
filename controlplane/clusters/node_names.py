"""Convert between a cluster's own node names and Trainyard's, which are unique across clusters. Pure."""

from __future__ import annotations

from collections.abc import Sequence

# How many of many names a sentence lists, so that it stays readable.
SHOWN = 5


def name_here(theirs: str, suffix: str) -> str:
    """Return Trainyard's name for the cluster's node `theirs`; "" stays "" (no node)."""
    return f"{theirs}.{suffix}" if theirs and suffix else theirs


def name_there(ours: str, suffix: str) -> str:
    """Return the cluster's own name for Trainyard's node name `ours`."""
    return ours.removesuffix(f".{suffix}") if suffix else ours


def some_of(names: Sequence[str]) -> str:
    """Format a list of names, the first ones in full: `a, b and 7 more`."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"
