"""The listing and the manifest of the last sync of a directory. If few files changed since, the new manifest is made
from that manifest and the lines of the listing that differ: no other line is parsed."""

import marshal
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from datasets.ingest.listing import Listing, ListingInvalid, line_path, lines_of, walk_of
from datasets.ingest.reader import RACY_NS
from datasets.ingest.stored import store
from datasets.ingest.tree import Skipped, Walk
from datasets.manifests import Manifest, ManifestInvalid, count_equal, decode

_FORMAT = 1
# With more changes than this share of the files the whole listing is parsed. Fewer than _FEW are always looked up.
_MOST_SHARE, _FEW = 0.2, 1000


@dataclass(frozen=True, slots=True)
class LastListing:
    """What a sync found. `lines`: the listing; `unsettled`: the indexes of the lines whose files may have changed since
    without a new mtime."""

    lines: list[bytes]
    manifest: Manifest
    unsettled: Sequence[int]
    skipped: list[Skipped]


@dataclass(frozen=True, slots=True)
class Difference:
    """What a listing shows that the last one did not. `lines`: the indexes of new and of unsettled lines, `found`: what
    they list, without digests. `gone`: the paths of the last listing's lines that are not there any more; a changed
    file has a new line too. `skipped`: everything that is not included in versions; `files`: how many files are."""

    lines: list[int]
    found: Walk
    gone: set[bytes]
    skipped: list[Skipped]
    files: int

    @property
    def is_empty(self) -> bool:
        """Return whether nothing changed and no file has to be read again."""
        return not (self.lines or self.gone)

    def unsettled(self, listing: Listing) -> list[int]:
        """Return the indexes of the lines of files that may change without a new mtime."""
        young = young_paths(self.found, listing)
        lines = listing.lines
        return [place for place in self.lines if line_path(lines[place]) in young] if young else []


def difference(last: LastListing, listing: Listing) -> Difference | None:
    """Return what changed since the last listing; None if much did, or Python must walk the tree."""
    # A find that failed wrote a part of the files or none: the others would count as removed.
    if listing.raw is None:
        return None
    old, new = last.lines, listing.lines
    start = min([count_equal(old, new), *last.unsettled])
    end = count_equal(reversed(old[start:]), reversed(new[start:]))
    end = min([end, *(len(old) - 1 - place for place in last.unsettled)])
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    known = set(before).difference(old[place] for place in last.unsettled)
    changed = [place for place, line in enumerate(after, start) if line not in known]
    if len(changed) > max(_FEW, _MOST_SHARE * len(new)):
        return None
    try:
        found = walk_of(new[place] for place in changed)
    except ListingInvalid:
        return None
    still = set(after)
    gone = {line_path(line) for line in before if line not in still}
    again = gone.union(line_path(new[place]) for place in changed)
    skipped = [one for one in last.skipped if one.path not in again] + found.skipped
    return Difference(changed, found, gone, skipped, len(new) - len(skipped))


def young_paths(found: Walk, listing: Listing) -> set[bytes]:
    """Return the paths of the files in a walk that were so young when the listing began that they may change without a
    new mtime."""
    limit = listing.started_ns - RACY_NS
    return {
        os.path.join(directory.path, row[0])
        for directory in found.directories
        for row in directory.rows
        if row[3] >= limit
    }


def load_last(index: Path) -> LastListing | None:
    """Return the listing stored beside a stat index; None if it is missing or damaged."""
    try:
        raw = _beside(index).read_bytes()
        body = memoryview(raw)[4:]
        if crc32(body).to_bytes(4, "little") != raw[:4]:
            return None
        form, listed, manifest, unsettled, skipped = marshal.loads(body)
        if form != _FORMAT:
            return None
        return LastListing(lines_of(listed), decode(manifest), unsettled, [Skipped(*one) for one in skipped])
    except (OSError, ValueError, EOFError, TypeError, ManifestInvalid):
        return None


def save_last(
    index: Path,
    listing: Listing,
    manifest: Manifest,
    unsettled: Sequence[int],
    skipped: Sequence[Skipped],
) -> None:
    """Store a listing and its manifest beside a stat index, for the next sync. `unsettled`: as in LastListing. Does
    nothing if there is no listing. Raises OSError if the file cannot be written."""
    if listing.raw is None:
        return
    rows = [(one.path, one.reason) for one in skipped]
    # Not compressed: it takes longer than all else.
    body = marshal.dumps((_FORMAT, listing.raw[:], manifest.encode(0), tuple(unsettled), rows))
    store(_beside(index), (crc32(body).to_bytes(4, "little"), body))


def forget_last(index: Path) -> None:
    """Remove the listing beside a stat index, if there is one."""
    _beside(index).unlink(missing_ok=True)


def _beside(index: Path) -> Path:
    return index.with_suffix(".last")
