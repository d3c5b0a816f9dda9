"""Convert between a cluster's own node names and Trainyard's, which are unique across clusters. Pure."""

from __future__ import annotations

# How many of many names a sentence lists, so that it stays readable.


def name_here(theirs: str, suffix: str) -> str:
    """Return Trainyard's name for the cluster's node `theirs`: with the cluster's `suffix` appended, if it has one.
    "" (no node) stays ""."""
    return f"{theirs}.{suffix}" if theirs and suffix else theirs


def name_there(ours: str, suffix: str) -> str:
    """Return the cluster's own name for Trainyard's node name `ours`."""
    return ours.removesuffix(f".{suffix}") if suffix else ours
