"""The manifest of a dataset version: a sorted, hashed list of its files. Pure.

A manifest is stored in columns, not rows, so that 627,615 files load and compare in C loops; the database has
only the hash and the totals. Paths are bytes as in the file system, with "/" between components, sorted
bytewise.
"""

import operator
import re
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice

# File kinds; the content of a link is its target.
FILE, EXECUTABLE, LINK = 0, 1, 2
DIGEST_BYTES = 32
# Linux's PATH_MAX and NAME_MAX: a longer path cannot be created where the version is cached or cloned.
PATH_MOST_BYTES, NAME_MOST_BYTES = 4096, 255
FILES_MOST = 5_000_000
# Limit on the decompressed bytes of a manifest: a client may send one that expands a hundredfold.
PATHS_MOST_BYTES = 256 << 20
# Limit on the size of a version: larger numbers are not exact in JSON, and sums of some overflow in the database.
SIZE_MOST_BYTES = 1 << 53

_MAGIC = b"trainyard-manifest-1\n"
# Number of files, bytes of the joined paths, bytes of the compressed columns.
_HEAD = struct.Struct("<QQQ")
_BLOCK = 16
_IS_LITTLE_ENDIAN = struct.pack("=H", 1) == struct.pack("<H", 1)
# Up to as many changed files are looked up one by one.
_FEW = 1000
# The byte after "/": `directory + b"0"` sorts after everything below `directory`.
_AFTER_SLASH = b"0"
# Matches empty components, "." and "..", and absolute paths; applied to all paths at once.
_UNSAFE = re.compile(rb"[\0/](?:/|\0|\.\.?[\0/])")


class ManifestInvalid(ValueError):
    """The bytes are not a manifest, or it has unsafe paths."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a version: path, kind, size in bytes and SHA-256 of the content."""

    path: bytes
    kind: int
    size_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Child:
    """A file or directory directly below a directory. `files`, `size_bytes`: for a directory, totals of all below
    it. `kind`, `digest`: of a file."""

    name: bytes
    is_directory: bool
    files: int
    size_bytes: int
    kind: int = FILE
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Diff:
    """Added, removed and changed paths, each sorted. `changed`: other content or another kind."""

    added: Sequence[bytes]
    removed: Sequence[bytes]
    changed: Sequence[bytes]

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


class Manifest:
    """The files of a version, in columns of equal length. Immutable. `paths`: sorted; `kinds`: a byte each; `sizes`:
    in bytes; `digests`: SHA-256 of the contents, concatenated."""

    def __init__(self, paths: list[bytes], kinds: bytes, sizes: "array[int]", digests: bytes) -> None:
        self.paths, self.kinds, self.sizes, self.digests = paths, kinds, sizes, digests

    @classmethod
    def empty(cls) -> "Manifest":
        """Return the manifest without files."""
        return cls([], b"", array("Q"), b"")

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def size_bytes(self) -> int:
        """Return the bytes of all files; equal contents count once per path."""
        return sum(self.sizes)

    @cached_property
    def hash(self) -> str:
        """Return the hash that identifies the version: the SHA-256 of the columns, in hexadecimal."""
        return self._hashed(b"\0".join(self.paths))

    @cached_property
    def each_digest(self) -> Sequence[bytes]:
        """Return the digest of each file."""
        return split_digests(self.digests)

    @cached_property
    def store_names(self) -> Sequence[bytes]:
        """Return the name that each file's content has in caches: its digest, with b"x" appended if executable; b"" for
        links."""
        if not any(self.kinds):
            return self.each_digest
        names = list(self.each_digest)
        for place, kind in enumerate(self.kinds):
            if kind:
                names[place] = names[place] + b"x" if kind == EXECUTABLE else b""
        return names

    @cached_property
    def stored_sizes(self) -> Mapping[bytes, int]:
        """Return the contents that caches have of this version: size in bytes by store name. Links have none."""
        found = dict(zip(self.store_names, self.sizes, strict=True))
        found.pop(b"", None)
        return found

    def digest(self, index: int) -> bytes:
        """Return the SHA-256 of the content of the file with this index."""
        return self.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]

    def entry(self, index: int) -> Entry:
        return Entry(self.paths[index], self.kinds[index], self.sizes[index], self.digest(index))

    def entries(self) -> Iterator[Entry]:
        """Yield all files, sorted by path."""
        return map(self.entry, range(len(self)))

    def find(self, path: bytes) -> Entry | None:
        """Return the file at exactly this path; None if there is none, also for a directory."""
        index = bisect_left(self.paths, path)
        return self.entry(index) if index < len(self) and self.paths[index] == path else None

    def has(self, path: bytes) -> bool:
        """Return whether there is a file or a directory at exactly this path."""
        return self.find(path) is not None or bool(self.children(path, limit=1))

    def children(self, directory: bytes = b"", after: bytes = b"", limit: int = 1000) -> list[Child]:
        """Return at most `limit` files and directories directly in a directory ("" for the top), sorted, whose
        names follow `after`. The cost depends on the result's length, not on the directory's size."""
        prefix = directory + b"/" if directory else b""
        index = self._index_after(prefix, after)
        found: list[Child] = []
        while index < len(self) and len(found) < limit and self.paths[index].startswith(prefix):
            name, slash, _ = self.paths[index][len(prefix) :].partition(b"/")
            end = bisect_left(self.paths, prefix + name + _AFTER_SLASH, index) if slash else index + 1
            if name != after:
                found.append(self._child(name, bool(slash), index, end))
            index = end
        return found

    def _index_after(self, prefix: bytes, after: bytes) -> int:
        """Return the index of the first file after `after`, the name of a file, or of a directory with all its
        files, in the directory `prefix` (with its slash; b"" for the top); b"" for its first file."""
        index = bisect_left(self.paths, prefix + after)
        if not after:
            return index
        if index < len(self) and self.paths[index] == prefix + after:
            return index + 1
        return bisect_left(self.paths, prefix + after + _AFTER_SLASH, index)

    def contents(self) -> list[bytes]:
        """Return the distinct digests of all files."""
        return list(set(self.each_digest))

    def only(self, indexes: Iterable[int]) -> "Manifest":
        """Return the manifest of the files with these indexes, which must ascend."""
        chosen = list(indexes)
        return Manifest(
            [self.paths[index] for index in chosen],
            bytes(self.kinds[index] for index in chosen),
            array("Q", [self.sizes[index] for index in chosen]),
            b"".join(map(self.digest, chosen)),
        )

    def patched(self, removed: Iterable[bytes], changed: "Manifest") -> "Manifest":
        """Return this manifest without the paths `removed`, and with the files of `changed`, a checked one, in place of
        those at the same paths. Raises ManifestInvalid if a file would be a directory too."""
        edits = dict.fromkeys(removed, -1) | {path: index for index, path in enumerate(changed.paths)}
        paths, kinds, sizes, digests = [], [], array("Q"), []
        start = 0
        for path, index in sorted(edits.items()):
            end = bisect_left(self.paths, path, start)
            # All that lies between two edits at once: most files of a version are those of the one before.
            for one, first, last in ((self, start, end), (changed, index, index + 1)):
                if first >= 0:
                    paths += one.paths[first:last]
                    kinds.append(one.kinds[first:last])
                    sizes += one.sizes[first:last]
                    digests.append(one.digests[first * DIGEST_BYTES : last * DIGEST_BYTES])
            start = end + (end < len(self) and self.paths[end] == path)
        made = Manifest(
            paths + self.paths[start:],
            b"".join((*kinds, self.kinds[start:])),
            sizes + self.sizes[start:],
            b"".join((*digests, self.digests[start * DIGEST_BYTES :])),
        )
        made._check_beside(changed.paths)
        return made

    def encode(self, level: int = 1) -> bytes:
        """Return the form in which a manifest is stored and sent; see `decode`. `level`: of zlib's compression, 0 for
        none."""
        joined = b"\0".join(self.paths)
        packed = zlib.compress(joined + self.kinds + _packed(self.sizes), level)
        if "hash" not in self.__dict__:
            self.__dict__["hash"] = self._hashed(joined)
        return b"".join((_MAGIC, _HEAD.pack(len(self), len(joined), len(packed)), packed, self.digests))

    def _check_beside(self, paths: Iterable[bytes]) -> None:
        """Raise ManifestInvalid if one of these files is a directory of others, or in one that is a file."""
        for path in paths:
            below = path + b"/"
            index = bisect_left(self.paths, below)
            is_above = index < len(self) and self.paths[index].startswith(below)
            while not is_above and (above := path.rpartition(b"/")[0]):
                path, is_above = above, self.find(above) is not None
            if is_above:
                raise _both(path)

    def _child(self, name: bytes, is_directory: bool, index: int, end: int) -> Child:
        size = sum(self.sizes[index:end])
        if is_directory:
            return Child(name, True, end - index, size)
        return Child(name, False, 1, size, self.kinds[index], self.digest(index))

    def _hashed(self, joined: bytes) -> str:
        hashed = sha256(_MAGIC + _HEAD.pack(len(self), len(joined), 0))
        for column in (joined, self.kinds, _packed(self.sizes), self.digests):
            hashed.update(column)
        return hashed.hexdigest()


def split_digests(joined: bytes) -> list[bytes]:
    """Return the digests that were concatenated."""
    return [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)]


def make_manifest(entries: Iterable[Entry]) -> Manifest:
    """Return the manifest of entries given in any order. Raises ManifestInvalid as `checked`, also for repeated
    paths."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    return checked(
        Manifest(
            [entry.path for entry in ordered],
            bytes(entry.kind for entry in ordered),
            array("Q", [entry.size_bytes for entry in ordered]),
            b"".join(entry.digest for entry in ordered),
        )
    )


def decode(stored: bytes) -> Manifest:
    """Return the manifest of the encoded form `stored`. Raises ManifestInvalid if it is broken. Call `checked` on
    input from clients; manifests in the lake were checked before."""
    head = len(_MAGIC) + _HEAD.size
    if not stored.startswith(_MAGIC) or len(stored) < head:
        raise ManifestInvalid("This is not a manifest.")
    count, joined_bytes, packed_bytes = _HEAD.unpack_from(stored, len(_MAGIC))
    if count > FILES_MOST or len(stored) != head + packed_bytes + count * DIGEST_BYTES:
        raise ManifestInvalid("The manifest is truncated.")
    if joined_bytes > min(count * (PATH_MOST_BYTES + 1), PATHS_MOST_BYTES):
        raise ManifestInvalid("The manifest's paths are longer than a version may have.")
    columns = _inflated(stored[head : head + packed_bytes], joined_bytes + count * 9)
    paths = columns[:joined_bytes].split(b"\0") if count else []
    kinds = columns[joined_bytes : joined_bytes + count]
    sizes = _little(array("Q", columns[joined_bytes + count :]))
    return Manifest(paths, kinds, sizes, stored[head + packed_bytes :])


def checked(manifest: Manifest) -> Manifest:
    """Return the manifest. Raises ManifestInvalid for paths that cannot exist in a tree or that leave it, for paths
    out of order or repeated, for columns that do not match, and beyond SIZE_MOST_BYTES."""
    paths = manifest.paths
    if len(paths) != len(manifest.kinds) or any(kind > LINK for kind in set(manifest.kinds)):
        raise ManifestInvalid("The manifest's columns do not match.")
    if manifest.size_bytes > SIZE_MOST_BYTES:
        raise ManifestInvalid(f"The files are larger than {SIZE_MOST_BYTES} bytes together.")
    if not paths:
        return manifest
    if any(map(operator.ge, paths, islice(paths, 1, None))):
        raise ManifestInvalid("The manifest's paths are not sorted, or one is listed twice.")
    joined = b"\0".join(paths)
    if _UNSAFE.search(b"\0%b\0" % joined) or joined.count(b"\0") != len(paths) - 1:
        raise ManifestInvalid("The manifest names an absolute path, an empty one, or one with '.' or '..'.")
    longest = max(map(len, paths))
    if longest > PATH_MOST_BYTES:
        raise ManifestInvalid(f"A path is longer than {PATH_MOST_BYTES} bytes.")
    if longest > NAME_MOST_BYTES and any(len(name) > NAME_MOST_BYTES for name in _names(joined)):
        raise ManifestInvalid(f"A name is longer than {NAME_MOST_BYTES} bytes.")
    _check_no_file_is_a_directory(paths)
    return manifest


def compare(before: Manifest, after: Manifest) -> Diff:
    if not before.paths:
        return Diff(after.paths, (), ())
    if before.paths == after.paths:
        return Diff((), (), _changed(before.paths, _columns(before, ()), _columns(after, ())))
    # Two versions mostly differ in few places: the paths before the first and after the last are not hashed.
    start = count_equal(before.paths, after.paths)
    end = count_equal(reversed(before.paths[start:]), reversed(after.paths[start:]))
    middle = before.paths[start : len(before) - end]
    old, new = set(middle), set(after.paths[start : len(after) - end])
    removed, added = sorted(old - new), sorted(new - old)
    common = before.paths
    if removed:
        kept = (path for path in middle if path in new)
        common = [*before.paths[:start], *kept, *before.paths[len(before) - end :]]
    return Diff(added, removed, _changed(common, _columns(before, removed), _columns(after, added)))


def new_contents(before: Manifest, after: Manifest, diff: Diff) -> set[bytes]:
    """Return the digests of all contents of `after` that `before` does not have, and perhaps of some that it has.
    `diff`: of the two."""
    if len(diff.added) + len(diff.changed) > _FEW:
        return set(after.contents()).difference(before.contents())
    return {after.digest(bisect_left(after.paths, path)) for path in (*diff.added, *diff.changed)}


def count_equal(one: Iterable[bytes], other: Iterable[bytes]) -> int:
    """Return how many elements at the beginning are equal."""
    found = 0
    for found, differs in enumerate(map(operator.ne, one, other), 1):
        if differs:
            return found - 1
    return found


def stays_inside(path: bytes, target: bytes) -> bool:
    """Return whether a link at `path` leads to a path inside the tree, existing or not, whatever other accepted
    links the tree has. `..` is accepted only at the beginning of a target."""
    if not target or target.startswith(b"/"):
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    # After the name of another link, `..` would resolve elsewhere.
    ups = next((place for place, part in enumerate(parts) if part != b".."), len(parts))
    return b".." not in parts[ups:] and ups <= path.count(b"/")


def _columns(manifest: Manifest, leave_out: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the digests and the kinds, each concatenated, without those of the paths in `leave_out` (sorted)."""
    digests, kinds, start = [], [], 0
    for path in leave_out:
        index = bisect_left(manifest.paths, path, start)
        digests.append(manifest.digests[start * DIGEST_BYTES : index * DIGEST_BYTES])
        kinds.append(manifest.kinds[start:index])
        start = index + 1
    digests.append(manifest.digests[start * DIGEST_BYTES :])
    return b"".join(digests), b"".join((*kinds, manifest.kinds[start:]))


def _changed(paths: list[bytes], old: tuple[bytes, bytes], new: tuple[bytes, bytes]) -> list[bytes]:
    """Return the paths whose digest or kind differs between the columns `old` and `new` (see `_columns`)."""
    changed: list[bytes] = []
    for start in range(0, len(paths), _BLOCK):
        end = min(start + _BLOCK, len(paths))
        # Whole blocks first: most blocks of two versions are equal.
        block = slice(start * DIGEST_BYTES, end * DIGEST_BYTES)
        if old[0][block] == new[0][block] and old[1][start:end] == new[1][start:end]:
            continue
        changed += [paths[index] for index in range(start, end) if _differs(old, new, index)]
    return changed


def _differs(old: tuple[bytes, bytes], new: tuple[bytes, bytes], index: int) -> bool:
    digest = slice(index * DIGEST_BYTES, (index + 1) * DIGEST_BYTES)
    return old[0][digest] != new[0][digest] or old[1][index] != new[1][index]


def _names(joined: bytes) -> list[bytes]:
    return joined.replace(b"/", b"\0").split(b"\0")


def _packed(sizes: "array[int]") -> bytes:
    return _little(sizes).tobytes()


def _little(sizes: "array[int]") -> "array[int]":
    """Return the numbers as a little-endian machine has them in memory, or back from there."""
    if _IS_LITTLE_ENDIAN:
        return sizes
    swapped = array("Q", sizes)
    swapped.byteswap()
    return swapped


def _inflated(packed: bytes, expected: int) -> bytes:
    """Return the decompressed bytes of `packed`. Raises ManifestInvalid unless they have exactly `expected`
    bytes."""
    inflate = zlib.decompressobj()
    try:
        # Limited, so that a small manifest cannot allocate gigabytes.
        columns = inflate.decompress(packed, expected + 1)
    except zlib.error as error:
        raise ManifestInvalid(f"The manifest cannot be read: {error}.") from error
    if len(columns) != expected or not inflate.eof:
        raise ManifestInvalid("The manifest's columns do not have the declared length.")
    return columns


def _check_no_file_is_a_directory(paths: list[bytes]) -> None:
    directories = {path.rpartition(b"/")[0] for path in paths}
    above = directories
    while above := {path.rpartition(b"/")[0] for path in above if b"/" in path} - directories:
        directories |= above
    if both := directories.intersection(paths):
        raise _both(min(both))


def _both(path: bytes) -> ManifestInvalid:
    return ManifestInvalid(f"{path[:80]!r} is a file and a directory.")
