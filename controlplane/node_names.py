"""What a node is called: by its cluster, and here, where no two clusters may have nodes of one name. Pure."""

from __future__ import annotations


def name_here(theirs: str, suffix: str) -> str:
    """What a node that its cluster calls `theirs` is called by everybody above engines; "" stays "" (no node)."""
    return f"{theirs}.{suffix}" if theirs and suffix else theirs


def name_there(ours: str, suffix: str) -> str:
    """The name by which the cluster knows the node that `name_here` called `ours`."""
    return ours.removesuffix(f".{suffix}") if suffix else ours
