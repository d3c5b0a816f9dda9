"""Read one commit of a git repository that is fetched into a temporary directory.

Objects are read from git's object store without a checkout, so that no filters or hooks of the repository
run. Submodules and large files stored elsewhere (LFS) are not followed.
"""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import urlsplit

from datasets.code_manifest import (
    FILES_MOST,
    PATH_MOST_BYTES,
    Entry,
    TreeRefused,
    file_entry,
    link_entry,
    too_large,
)

SCHEMES = ("https", "http", "ssh", "file")
# Factor by which a pack may exceed the tree's limit: it also holds deltas, and files refused later.
PACK_ROOM = 4
LONGEST_SECONDS = 600.0
POLL_SECONDS = 0.2
MESSAGE_MOST = 400
# git's last words after a transport failed. The cause is in front of them, advice for a person's own git behind.
_UNREAD = "fatal: Could not read from remote repository."
# Limit on a listing: reached by more than FILES_MOST lines, or by paths longer than allowed.
LISTING_MOST_BYTES = FILES_MOST * (PATH_MOST_BYTES + 128)
_FETCHED = "refs/fetched/commit"
_CHUNK_BYTES = 1 << 20
_EXECUTABLE, _LINK, _SUBMODULE = b"100755", b"120000", b"160000"
_ENVIRONMENT = {
    # Prevent git from prompting: a worker has no user to answer.
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    # Untranslated messages: `_last_line` removes their "fatal: ".
    "LC_ALL": "C",
}


# Maps git's object name of a content to its pieces.
Read: TypeAlias = Callable[[str], Iterator[bytes]]


class GitRefused(Exception):
    """The commit cannot be fetched; `code` gives the reason."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


@dataclass(frozen=True, slots=True)
class _Blob:
    name: str
    mode: bytes
    path: str
    size: int


def is_allowed(url: str, sources: Sequence[str]) -> bool:
    """Return whether an admin has allowed the URL: it equals one of the `sources`, or continues one after a
    slash. URLs with credentials, queries, `..` or escapes are never allowed."""
    parts = urlsplit(url)
    is_plain = parts.scheme in SCHEMES and not (parts.query or parts.fragment or parts.password or "%" in url)
    if not is_plain or ".." in parts.path.split("/") or (parts.username and parts.scheme != "ssh"):
        return False
    return any(url == source or url.startswith(source.rstrip("/") + "/") for source in sources)


class GitSource:
    """One commit, fetched into `folder`, which the caller creates and removes."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {**environment, **_ENVIRONMENT}

    def fetch(self, url: str, ref: str, most_bytes: int, check: Callable[[], None]) -> str:
        """Fetch the commit that `ref` names, without history, and return its hash. `check` is called regularly and
        may raise to cancel. Raises GitRefused if the repository or the ref cannot be read, or the commit exceeds
        `most_bytes`."""
        self._git("init", "--quiet", "--bare", ".")
        # Prevent redirects and submodules from using a protocol that no admin has allowed.
        allowed = ("-c", "protocol.allow=never", "-c", f"protocol.{urlsplit(url).scheme}.allow=always")
        options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
        command = [
            *allowed,
            "-c",
            "http.followRedirects=false",
            "fetch",
            *options,
            "--",
            url,
            f"+{ref}:{_FETCHED}",
        ]
        self._fetch(command, most_bytes * PACK_ROOM, check)
        return self._git("rev-parse", "--verify", "--quiet", f"{_FETCHED}^{{commit}}").decode().strip()

    def entries(
        self, commit: str, most_bytes: int, check: Callable[[], None]
    ) -> tuple[list[Entry], dict[str, str]]:
        """Return the entries of the commit's tree, and git's object names by SHA-256 of the content. `check` is
        called regularly and may raise to cancel. Raises GitRefused if git fails, and TreeRefused before any content
        is read if the tree has too many files or more than `most_bytes`."""
        blobs = self._blobs(commit)
        total = sum(blob.size for blob in blobs)
        if total > most_bytes:
            raise too_large("commit", total, most_bytes)
        entries: list[Entry] = []
        names: dict[str, str] = {}
        with self.reader() as read:
            for blob in blobs:
                check()
                entry = _entry(blob, read)
                entries.append(entry)
                names[entry.sha256] = blob.name
        return entries, names

    @contextmanager
    def reader(self) -> Iterator[Read]:
        """Context manager with a function that yields the content with git's object name in pieces; read one
        content to its end before the next."""
        with self._start(["cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as git:
            asked, answered = git.stdin, git.stdout
            assert asked is not None
            assert answered is not None
            try:
                yield partial(_read, asked, answered)
            finally:
                git.kill()

    def _blobs(self, commit: str) -> list[_Blob]:
        """Return the files and symbolic links of the commit's tree. Raises TreeRefused if it has too many files."""
        lines = self._listing(commit).split(b"\0")[:-1]
        if len(lines) > FILES_MOST:
            raise TreeRefused("too_many_files", f"The commit has more than {FILES_MOST:,} files.")
        return [blob for line in lines if (blob := _blob(line)) is not None]

    def _listing(self, commit: str) -> bytes:
        """Return git's listing of the commit's tree, truncated beyond the limits: a few tree objects that reference
        one another repeatedly can describe billions of files. Raises GitRefused if git fails."""
        command = ("ls-tree", "-r", "-z", "--long", "--full-tree", commit)
        with self._start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as git:
            assert git.stdout is not None
            listing, files = bytearray(), 0
            while piece := git.stdout.read(_CHUNK_BYTES):
                listing += piece
                files += piece.count(b"\0")
                if files > FILES_MOST or len(listing) >= LISTING_MOST_BYTES:
                    git.kill()
                    return bytes(listing)
        if git.returncode:
            raise GitRefused("git_failed", "git cannot list the files of the commit.")
        return bytes(listing)

    def _fetch(self, command: Sequence[str], most_bytes: int, check: Callable[[], None]) -> None:
        """Run a git command, each of whose files may have at most `most_bytes`. `check` is called repeatedly and may
        raise to abort. Raises GitRefused if the command fails or takes longer than LONGEST_SECONDS."""
        ends_at = time.monotonic() + LONGEST_SECONDS
        errors = self._folder / "errors"
        with errors.open("wb") as file, self._start(command, stdout=subprocess.DEVNULL, stderr=file) as git:
            try:
                # git has no limit of its own on what it fetches.
                resource.prlimit(git.pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
                while not _has_ended(git):
                    check()
                    if time.monotonic() > ends_at:
                        raise GitRefused("git_too_slow", f"git took longer than {LONGEST_SECONDS:g} s.")
            except BaseException:
                # Kill git and its helpers. It was not waited for yet, so its process group id cannot have
                # been reused.
                os.killpg(git.pid, signal.SIGKILL)
                raise
        if git.returncode:
            raise _failure(errors.read_text(errors="replace"), self._is_full(most_bytes), most_bytes)

    def _is_full(self, most_bytes: int) -> bool:
        return any(path.stat().st_size >= most_bytes for path in self._folder.rglob("*") if path.is_file())

    def _git(self, *arguments: str) -> bytes:
        with self._start(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as git:
            output, errors = git.communicate(timeout=LONGEST_SECONDS)
        if git.returncode:
            raise GitRefused("git_failed", _last_line(errors.decode(errors="replace")))
        return output

    def _start(self, arguments: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                ["git", *arguments],
                cwd=self._folder,
                env=self._environment,
                # In its own process group, so that its helpers can be killed with it.
                start_new_session=True,
                **{"stdin": subprocess.DEVNULL, **streams},
            )
        except FileNotFoundError as error:
            raise GitRefused(
                "git_missing", "git is not installed where the control plane's workers run."
            ) from error


def _has_ended(git: subprocess.Popen[bytes]) -> bool:
    try:
        git.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _blob(line: bytes) -> _Blob | None:
    """Parse a line of `ls-tree --long`; returns None for a submodule. Raises TreeRefused for a path that is not
    UTF-8."""
    about, path = line.split(b"\t", 1)
    mode, _, name, size = about.split()
    if mode == _SUBMODULE:
        return None
    return _Blob(name.decode("ascii"), mode, _text(path), int(size))


def _entry(blob: _Blob, read: Read) -> Entry:
    if blob.mode == _LINK:
        return link_entry(blob.path, _text(b"".join(read(blob.name))))
    hashed = hashlib.sha256()
    for piece in read(blob.name):
        hashed.update(piece)
    return file_entry(blob.path, blob.size, hashed.hexdigest(), is_executable=blob.mode == _EXECUTABLE)


def _read(asked: IO[bytes], answered: IO[bytes], name: str) -> Iterator[bytes]:
    asked.write(name.encode() + b"\n")
    asked.flush()
    header = answered.readline().split()
    if len(header) != 3:
        raise GitRefused("git_failed", f"git has no content {name}.")
    # git writes a newline after each content, which must be read too.
    left = int(header[2]) + 1
    while left:
        piece = answered.read(min(left, _CHUNK_BYTES))
        if not piece:
            raise GitRefused("git_failed", f"git ended within the content {name}.")
        left -= len(piece)
        if content := piece if left else piece[:-1]:
            yield content


def _text(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError as error:
        raise TreeRefused("not_utf8", f"The name {path!r} is not UTF-8.") from error


def _failure(errors: str, is_full: bool, most_bytes: int) -> GitRefused:
    if is_full:
        detail = f"The commit needs more than {most_bytes >> 20} MiB in git's own store."
        return GitRefused("repository_too_large", detail)
    return GitRefused("git_failed", _words(_last_line(errors)))


def _words(said: str) -> str:
    """Return git's message `said` for users; a missing branch, tag or default branch is explained in plain words
    instead."""
    _, is_missing, ref = said.partition("couldn't find remote ref ")
    if not is_missing:
        return said
    if ref == "HEAD":
        return "The repository has no default branch; name one: URL@BRANCH."
    return f"The repository has no branch or tag {ref}."


def _last_line(errors: str) -> str:
    """Return the last line of git's error output that names a cause, truncated, as the message for users."""
    cause = errors.partition(_UNREAD)[0]
    lines = [line.strip() for line in (cause if cause.strip() else errors).splitlines() if line.strip()]
    said = lines[-1] if lines else "git failed without a message"
    return said.removeprefix("fatal: ")[:MESSAGE_MOST]
