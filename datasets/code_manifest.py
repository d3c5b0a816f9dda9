"""The manifest of a code tree, and the hash that names the tree. Pure.

One entry per file, sorted by the bytes of its path. The hash of a tree is the SHA-256 of

    <kind> <size> <SHA-256 of the content>\\t<path>\\0

of all entries, where kind is f (a file), x (an executable file) or l (a symbolic link; its content is its
target).
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from controlplane.notation import binary_bytes

FILE, EXECUTABLE, LINK = "f", "x", "l"
FILES_MOST = 20_000
PATH_MOST_BYTES, NAME_MOST_BYTES = 1024, 255
_HEXADECIMAL = frozenset("0123456789abcdef")


class TreeRefused(ValueError):
    """The tree is not accepted. `index`: the faulty entry's index in the request, None for the tree as a
    whole."""

    def __init__(self, code: str, detail: str, index: int | None = None) -> None:
        super().__init__(detail)
        self.code, self.detail, self.index = code, detail, index


# A tuple: it is made, compared and hashed in C, and `yard` loads less.
class Entry(NamedTuple):
    """One file or symbolic link. `path`: its path relative to the root of the code, with slashes. `size`: bytes.
    `target`: the target of a link, "" for files."""

    path: str
    kind: str
    size: int
    sha256: str
    target: str = ""


def file_entry(path: str, size: int, sha256: str, *, is_executable: bool = False) -> Entry:
    """Return the entry of a regular file. `sha256`: hex digest of its content."""
    return Entry(path, EXECUTABLE if is_executable else FILE, size, sha256)


def link_entry(path: str, target: str) -> Entry:
    # A name on a disk need not be Unicode.
    content = target.encode(errors="surrogateescape")
    return Entry(path, LINK, len(content), hashlib.sha256(content).hexdigest(), target)


def checked(entries: Sequence[Entry], most_bytes: int, kept: Sequence[Entry] = ()) -> tuple[Entry, ...]:
    """Return `entries`, and those that are `kept` of an accepted tree, sorted as in the manifest. Raises TreeRefused
    for malformed hashes, sizes and paths, links that leave the tree, conflicting paths, and a tree with no files, too
    many files or more than `most_bytes`. Its index is that in `entries`, or more for one that is kept."""
    tree = [*entries, *kept]
    if not tree:
        raise TreeRefused("tree_empty", "The tree has no files.")
    if len(tree) > FILES_MOST:
        raise TreeRefused("too_many_files", f"The tree has {len(tree):,} files; at most {FILES_MOST:,}.")
    for index, entry in enumerate(entries):
        _check_entry(entry, index)
    total = sum(entry.size for entry in tree)
    if total > most_bytes:
        raise too_large("tree", total, most_bytes)
    _check_places(tree)
    return tuple(sorted(tree, key=lambda entry: entry.path.encode()))


def too_large(what: str, total_bytes: int, most_bytes: int) -> TreeRefused:
    """Return the refusal of a tree or a commit (`what`) that is larger than it may be."""
    detail = f"The {what} has {binary_bytes(total_bytes)}; at most {binary_bytes(most_bytes)}."
    return TreeRefused("tree_too_large", detail)


def tree_hash(entries: Iterable[Entry]) -> str:
    """Return the hexadecimal hash of a tree with these sorted entries."""
    return hashlib.sha256(dump(entries)).hexdigest()


def dump(entries: Iterable[Entry]) -> bytes:
    """Return the manifest of sorted entries, encoded."""
    return "".join(f"{line(entry)}\0" for entry in entries).encode()


def line(entry: Entry) -> str:
    """Return the entry as in the manifest, without the NUL at its end."""
    return f"{entry.kind} {entry.size} {entry.sha256}\t{entry.path}"


def load(manifest: bytes) -> tuple[Entry, ...]:
    """Return the entries of an encoded manifest. Those of links have no target, since the manifest has only its
    hash."""
    entries = []
    for line in manifest.decode().split("\0")[:-1]:
        head, _, path = line.partition("\t")
        kind, size, sha256 = head.split(" ")
        entries.append(Entry(path, kind, int(size), sha256))
    return tuple(entries)


def is_sha256(text: str) -> bool:
    """Return whether the text is a SHA-256 in lower-case hexadecimal."""
    return len(text) == 64 and set(text) <= _HEXADECIMAL


def _check_entry(entry: Entry, index: int) -> None:
    if not is_sha256(entry.sha256):
        raise TreeRefused(
            "not_a_hash", "Give the content's SHA-256 in 64 lower-case hexadecimal digits.", index
        )
    if entry.size < 0:
        raise TreeRefused("out_of_range", "A size cannot be negative.", index)
    if problem := path_problem(entry.path):
        raise TreeRefused("bad_path", f"{entry.path[:200]!r} {problem}.", index)
    if entry.kind == LINK and not stays_inside(entry.path, entry.target):
        detail = f"{entry.path!r} links to {entry.target[:200]!r}, outside of the tree; leave it out."
        raise TreeRefused("link_leaves_tree", detail, index)


def path_problem(path: str) -> str:
    """Return what is wrong with a path relative to a tree's root, "" if nothing."""
    names = path.split("/")
    if path.startswith("/"):
        return "is an absolute path"
    if any(name in ("", ".", "..") for name in names):
        return "has an empty part, '.' or '..' in it"
    if "\0" in path:
        return "has a NUL in it"
    try:
        sizes = [len(name.encode()) for name in names]
    except UnicodeEncodeError:
        return "is not Unicode"
    if max(sizes) > NAME_MOST_BYTES or sum(sizes) + len(sizes) > PATH_MOST_BYTES:
        return f"is too long: at most {NAME_MOST_BYTES} bytes a name and {PATH_MOST_BYTES} in all"
    return ""


def stays_inside(path: str, target: str) -> bool:
    """Return whether a symbolic link at `path` with this target leads to a path in the tree; see
    datasets.manifests.stays_inside."""
    if "\0" in target or len(target) > PATH_MOST_BYTES:
        return False
    # Imported here: it takes a part of the time of a submit, and few trees have links.
    from datasets.manifests import stays_inside as is_inside

    return is_inside(path.encode(), target.encode(errors="surrogateescape"))


def _check_places(entries: Sequence[Entry]) -> None:
    """Raise TreeRefused for duplicate paths, and for paths below a file or link."""
    places = {entry.path: index for index, entry in enumerate(entries)}
    if len(places) != len(entries):
        index = next(index for index, entry in enumerate(entries) if places[entry.path] != index)
        raise TreeRefused("path_twice", f"{entries[index].path!r} is listed twice.", index)
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        folder = entry.path.rpartition("/")[0]
        while folder and folder not in seen:
            if folder in places:
                detail = f"{entry.path!r} lies below {folder!r}, which is a file or a link."
                raise TreeRefused("below_a_file", detail, index)
            seen.add(folder)
            folder = folder.rpartition("/")[0]
