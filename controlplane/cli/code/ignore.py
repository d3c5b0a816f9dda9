""".yardignore: files that are not uploaded. Patterns are as in .gitignore."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NAME = ".yardignore"
_WILD = re.compile(r"\*\*/|/\*\*|\*|\?|\[!?\]?[^\]]*\]|\\.|.", re.DOTALL)


class Ignore:
    """The patterns of one .yardignore file. If several match a path, the last one decides. A file in an ignored
    directory cannot be re-included. The object is false if it has no patterns."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._rules = [rule for line in lines if (rule := _rule(line)) is not None]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def kept(self, paths: Sequence[str]) -> list[str]:
        """Return the paths that are not ignored, in their order."""
        if not self._rules:
            return list(paths)
        folders: dict[str, bool] = {"": False}
        return [
            path
            for path in paths
            if not self._is_in_left_out(path.rpartition("/")[0], folders) and not self.leaves_out(path)
        ]

    def leaves_out(self, path: str, *, is_folder: bool = False) -> bool:
        """Return whether the patterns ignore this path, regardless of the directories above it. `is_folder`: it is a
        directory, which also matches patterns with a trailing slash."""
        for pattern, is_negated, only_folders in reversed(self._rules):
            if (is_folder or not only_folders) and pattern.fullmatch(path):
                return not is_negated
        return False

    def _is_in_left_out(self, folder: str, known: dict[str, bool]) -> bool:
        """Return whether the patterns ignore a directory or one above it. `known`: earlier results by directory; new
        ones are added."""
        if folder not in known:
            above = folder.rpartition("/")[0]
            known[folder] = self._is_in_left_out(above, known) or self.leaves_out(folder, is_folder=True)
        return known[folder]


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool] | None:
    """Return (pattern, whether it re-includes, whether it matches directories only) for a line of the file; None for
    a comment or an empty line."""
    text = re.sub(r"(?<!\\)[ \t]+\Z", "", line.rstrip("\r\n"))
    if not text or text.startswith("#"):
        return None
    is_negated = text.startswith("!")
    text = text[is_negated:]
    only_folders = text.endswith("/")
    text = text.rstrip("/")
    is_anchored = "/" in text
    expression = _expression(text.lstrip("/"))
    return (
        re.compile(expression if is_anchored else f"(?:.*/)?{expression}", re.DOTALL),
        is_negated,
        only_folders,
    )


def _expression(glob: str) -> str:
    return "".join(_translated(part[0]) for part in _WILD.finditer(glob))


def _translated(part: str) -> str:
    known = {"**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "?": "[^/]"}
    if part in known:
        return known[part]
    if len(part) > 1 and part[0] == "[":
        inside = part[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        return f"(?!/)[^{inside[1:]}]" if inside.startswith("!") else f"(?!/)[{inside}]"
    return re.escape(part[1:] if len(part) > 1 and part[0] == "\\" else part)
