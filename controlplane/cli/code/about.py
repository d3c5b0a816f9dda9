"""Describe the origin of a job's code in one line."""

from __future__ import annotations

from typing import Any


def describe_code(code: dict[str, Any]) -> str:
    """Return a line about a job's code: tree, commit, branch and repository, as far as they are known."""
    words = [str(code["tree"])[:19]]
    if code.get("commit"):
        words.append(f"commit {str(code['commit'])[:10]}{' with changes' if code.get('is_dirty') else ''}")
    if code.get("branch"):
        words.append(f"branch {code['branch']}")
    if code.get("repository"):
        words.append(str(code["repository"]))
    return ", ".join(words)
