"""Copy a directory tree to which other processes may write, without following links out of it."""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from datasets.ingest.reader import RACY_NS
from datasets.storage.base import UNLIMITED, Blocked, Budget
from datasets.storage.files import blocked, copy_file, hard_link, reflink, sync_file_system

# Directory of the control plane and of programs that participate in snapshots; not part of a volume's
# content.
OWN = b".trainyard"
NAMED_MOST = 10
_TRIES = 3

# Size, mtime in ns, ctime in ns, inode.
Seen = tuple[int, int, int, int]
Index = dict[bytes, Seen]


@dataclass(slots=True)
class Copied:
    """A copied tree. `new_bytes`: the size of the files that are not hard links to `before`. `index`: the stat of
    each file that may be shared with a later copy. `changed`: files that changed while they were read, `skipped`:
    sockets, pipes and devices; both as counts, with the first paths in `named`."""

    files: int = 0
    size_bytes: int = 0
    new_bytes: int = 0
    index: Index = field(default_factory=dict)
    changed: int = 0
    skipped: int = 0
    named: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Before:
    """An earlier copy of the same tree in `root`, to which files that `index` shows to be unchanged are hard-linked;
    both copies must stay unmodified."""

    root: Path
    index: Index


@dataclass(frozen=True, slots=True)
class TreeSize:
    """How many files a directory tree has, and their bytes together."""

    files: int
    size_bytes: int


def copy_tree(
    source: Path,
    target: Path,
    *,
    before: Before | None = None,
    budget: Budget = UNLIMITED,
    report: Callable[[int, int], None] = lambda files, size_bytes: None,
) -> Copied:
    """Copy `source` to `target`, which must not exist: with modes, times and symbolic links; contents by reflink or
    copy. `before`: an earlier copy to share unchanged files with. `report` gets the files and bytes done. Raises
    Blocked if a file cannot be read or written, what `budget` raises, and FileNotFoundError if there is no source."""
    copy = _Copy(os.fsencode(target), before, time.time_ns() - RACY_NS)
    try:
        # A write through a memory map updates the mtime only when the page was clean before; flush the pages
        # first.
        sync_file_system(source)
        for directory, names, descriptor in walk(source):
            budget.check()
            copy.directory(directory, names, descriptor, budget)
            report(copy.done.files, copy.done.size_bytes)
        copy.finish()
    except FileNotFoundError:
        raise
    except (OSError, RecursionError) as error:
        raise _blocked(error) from error
    return copy.done


def walk(source: Path) -> Iterator[tuple[bytes, list[bytes], int]]:
    """Yield (relative path, names, descriptor) of each directory below `source`. Follows no link, even if one
    replaces a directory meanwhile. Omits OWN at the top. Raises FileNotFoundError if `source` is not a directory."""
    top = os.fsencode(source)
    if not stat.S_ISDIR(os.lstat(top).st_mode):
        raise FileNotFoundError(top)
    for path, directories, files, descriptor in os.fwalk(top, onerror=_unless_gone):
        directory = path[len(top) :].strip(b"/")
        if not directory and OWN in directories:
            directories.remove(OWN)
        yield directory, [*directories, *files], descriptor


class _Copy:
    def __init__(self, target: bytes, before: Before | None, racy_ns: int) -> None:
        self._target, self._before, self._racy_ns = target, before, racy_ns
        self._directories: list[tuple[bytes, os.stat_result]] = []
        self.done = Copied()

    def directory(self, path: bytes, names: list[bytes], descriptor: int, budget: Budget) -> None:
        place = os.path.join(self._target, path) if path else self._target
        # Does not create parents: if they were removed meanwhile, another process has taken over this work.
        os.mkdir(place, 0o700)
        self._directories.append((place, os.fstat(descriptor)))
        for count, name in enumerate(names):
            if count % 256 == 255:
                budget.check()
            try:
                self._entry(os.path.join(path, name), name, descriptor, budget)
            except FileNotFoundError:
                # Removed since it was listed.
                continue

    def finish(self) -> None:
        """Set modes and times of directories, after all their files are written."""
        # Deepest first: without permission to search a directory, those below it cannot be reached.
        for place, found in reversed(self._directories):
            os.chmod(place, stat.S_IMODE(found.st_mode))
            os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _entry(self, path: bytes, name: bytes, descriptor: int, budget: Budget) -> None:
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        place = os.path.join(self._target, path)
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=descriptor), place)
            self.done.files += 1
        elif stat.S_ISREG(found.st_mode):
            self._file(path, name, descriptor, found, place, budget)
        elif not stat.S_ISDIR(found.st_mode):
            self.done.skipped += 1
            self._name(path)

    def _file(
        self,
        path: bytes,
        name: bytes,
        descriptor: int,
        found: os.stat_result,
        place: bytes,
        budget: Budget,
    ) -> None:
        if not self._linked(path, found, place):
            found = self._read(path, name, descriptor, place, budget)
            self.done.new_bytes += found.st_size
        self.done.files += 1
        self.done.size_bytes += found.st_size
        # A file that changed just before the copy may change again without a new time, so it is not indexed.
        if max(found.st_mtime_ns, found.st_ctime_ns) < self._racy_ns:
            self.done.index[path] = _seen(found)

    def _linked(self, path: bytes, found: os.stat_result, place: bytes) -> bool:
        if self._before is None or self._before.index.get(path) != _seen(found):
            return False
        source = os.path.join(os.fsencode(self._before.root), path)
        try:
            return hard_link(source, Path(os.fsdecode(place)))
        except FileNotFoundError:
            # The earlier snapshot is being removed, so the file is copied instead.
            return False

    def _read(
        self, path: bytes, name: bytes, descriptor: int, place: bytes, budget: Budget
    ) -> os.stat_result:
        """Copy the file `name` of the directory `descriptor` to `place`, repeatedly while it changes; return its
        stat from before the last copy. A file that never stops changing is counted as changed."""
        # O_NONBLOCK, because a program may have replaced the file by a pipe, whose opening would block.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
        try:
            for _ in range(_TRIES):
                found = os.fstat(file)
                _share(file, place, budget)
                os.chmod(place, stat.S_IMODE(found.st_mode))
                os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
                if _seen(os.fstat(file)) == _seen(found):
                    return found
            self.done.changed += 1
            self._name(path)
            return os.stat(place)
        finally:
            os.close(file)

    def _name(self, path: bytes) -> None:
        if len(self.done.named) < NAMED_MOST:
            self.done.named.append(path.decode("utf-8", "backslashreplace"))


def _share(file: int, place: bytes, budget: Budget) -> None:
    # No hard link: it would let the volume's programs write into the copy.
    source, target = f"/proc/self/fd/{file}".encode(), Path(os.fsdecode(place))
    target.unlink(missing_ok=True)
    if not reflink(source, target):
        copy_file(source, target, lambda _: budget.check())


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _seen(found: os.stat_result) -> Seen:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _blocked(error: OSError | RecursionError) -> Exception:
    if not isinstance(error, OSError) or error.errno in (errno.EMFILE, errno.ENAMETOOLONG):
        return Blocked(
            "too_deep", "Its directories are too deep inside one another, or their paths too long, to copy."
        )
    return blocked(error)
