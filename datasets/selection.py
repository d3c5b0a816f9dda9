"""Select the files of a version for a saved subset. Pure.

A pattern is matched against the whole path: `*` and `?` do not match "/", `**/` matches any number of
directories, `[a-c]` one ASCII character. A pattern that ends with "/" matches everything below a directory;
one without any "/" matches file names in every directory, as in .gitignore.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from datasets.manifests import Manifest

PATTERNS_MOST, PATTERN_MOST_BYTES = 50, 1024
# A character set, a run of `*`, or one byte.
_TOKEN = re.compile(rb"\[!?\]?[^\]]+\]|\*+|.", re.DOTALL)
# One UTF-8 character of several bytes.
_BEYOND_ASCII = rb"[\xc0-\xff][\x80-\xbf]*"


@dataclass(frozen=True, slots=True)
class Selection:
    """Files that match one of `include` or are listed in `paths`, except those that match one of `exclude`."""

    include: Sequence[bytes] = ()
    exclude: Sequence[bytes] = ()
    paths: Sequence[bytes] = ()


class PathsUnknown(LookupError):
    """The version lacks some of the listed paths. `paths`: these, sorted."""

    def __init__(self, paths: Sequence[bytes]) -> None:
        super().__init__(f"{len(paths)} paths are not in this version.")
        self.paths = paths


def select(manifest: Manifest, selection: Selection) -> Manifest:
    """Return the manifest of the files that the selection selects. Raises PathsUnknown if the version lacks a
    listed path."""
    listed = set(selection.paths)
    if unknown := sorted(listed.difference(manifest.paths)):
        raise PathsUnknown(unknown)
    is_in, is_out = _matcher(selection.include), _matcher(selection.exclude)
    return manifest.only(
        place
        for place, path in enumerate(manifest.paths)
        if (path in listed or is_in.fullmatch(path)) and not is_out.fullmatch(path)
    )


def misplaced(manifest: Manifest, patterns: Iterable[bytes]) -> list[bytes]:
    """Return the patterns that match no file because they name a directory from the top, though there is one of that
    name deeper: `drafts/` where only `pictures/drafts/` exists. A pattern that begins with "/" means the top."""
    below = [one for one in dict.fromkeys(patterns) if b"/" in one and not one.startswith((b"/", b"**/"))]
    return [one for one in below if not _matches(manifest, one) and _matches(manifest, b"**/" + one)]


def _matches(manifest: Manifest, pattern: bytes) -> bool:
    return any(map(_matcher((pattern,)).fullmatch, manifest.paths))


def _matcher(patterns: Iterable[bytes]) -> re.Pattern[bytes]:
    """Return one expression that matches what any of the patterns matches; without patterns it matches nothing."""
    return re.compile(b"|".join(map(_translated, patterns)) or rb"(?!)", re.DOTALL)


def _translated(pattern: bytes) -> bytes:
    """Return the regular expression of a pattern.

    The names between two `**` match at the leftmost place, in an atomic group, without backtracking: the
    leftmost place leaves most of the path to the rest. With backtracking, a few `**` in one pattern can take
    hours for one path.
    """
    if pattern.endswith(b"/"):
        pattern += b"**"
    if b"/" not in pattern:
        pattern = b"**/" + pattern
    runs = _runs(pattern.lstrip(b"/").split(b"/"))
    last = b"/".join(map(_name, runs[-1]))
    if len(runs) == 1:
        return b"(?:%b)" % last
    first = b"".join(_name(part) + b"/" for part in runs[0])
    middle = b"".join(
        rb"(?>(?:[^/]+/)*?%b)" % b"".join(_name(part) + b"/" for part in run) for run in runs[1:-1] if run
    )
    end = rb"(?:.*/)?" + last if last else rb".+"
    return b"(?:%b)" % (first + middle + end)


def _runs(parts: Sequence[bytes]) -> list[list[bytes]]:
    """Return the parts of a pattern in runs: a new one begins at each `**`, which is left out."""
    runs: list[list[bytes]] = [[]]
    for part in parts:
        if part == b"**":
            runs.append([])
        else:
            runs[-1].append(part)
    return runs


def _name(part: bytes) -> bytes:
    """Return the regular expression of one path component of a pattern. Text between two `*` matches at the leftmost
    place, without backtracking, as in `_translated`."""
    fixed = [b""]
    for token in _TOKEN.findall(part):
        if token.startswith(b"*"):
            fixed.append(b"")
        else:
            fixed[-1] += _one(token)
    if len(fixed) == 1:
        return fixed[0]
    middle = b"".join(rb"(?>[^/]*?%b)" % piece for piece in fixed[1:-1])
    return fixed[0] + middle + rb"[^/]*" + fixed[-1]


def _one(token: bytes) -> bytes:
    """Return the regular expression for one token of a pattern: "?", a character or a bracket expression."""
    if token == b"?":
        return rb"(?>%b|[^/])" % _BEYOND_ASCII
    if len(token) == 1:
        return re.escape(token)
    is_other = token.startswith(b"[!")
    members = _members(token[2 if is_other else 1 : -1])
    wanted = (set(range(128)) if is_other else members) - {ord("/")} - (members if is_other else set())
    chosen = b"[%b]" % b"".join(rb"\x%02x" % one for one in sorted(wanted)) if wanted else rb"(?!)"
    return rb"(?>%b|%b)" % (_BEYOND_ASCII, chosen) if is_other else chosen


def _members(body: bytes) -> set[int]:
    """Return the bytes that a character set contains. `body`: the text between the brackets; a reversed range
    such as z-a contains none."""
    members: set[int] = set()
    place = 0
    while place < len(body):
        is_range = body[place + 1 : place + 2] == b"-" and place + 2 < len(body)
        end = body[place + 2] if is_range else body[place]
        members.update(range(body[place], end + 1))
        place += 3 if is_range else 1
    return members
