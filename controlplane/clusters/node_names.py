"""Convert between a cluster's own node names and Trainyard's, which are unique across clusters. No I/O."""

from __future__ import annotations


def name_here(theirs: str, suffix: str) -> str:
    """Return Trainyard's name for the node that its cluster calls `theirs`: `theirs.suffix`, or `theirs` if the
    cluster has no suffix. "" stays ""."""
    return f"{theirs}.{suffix}" if theirs and suffix else theirs


def name_there(ours: str, suffix: str) -> str:
    """Return the name that the cluster itself uses for Trainyard's node name `ours`; the inverse of `name_here`."""
    return ours.removesuffix(f".{suffix}") if suffix else ours
