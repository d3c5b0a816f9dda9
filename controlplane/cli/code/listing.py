"""List the code files of a directory: those that git tracks or does not ignore, or all without git; minus
.yardignore."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from controlplane.cli.code.ignore import NAME, Ignore
from controlplane.cli.errors import USAGE, CliError

# Limit for directories without git, against uploading a home directory.
WALK_MOST = 200_000
# The server stores the diff with the tree, so a larger one is cut.
DIFF_MOST_BYTES = 512 * 1024
_REVISION = ("rev-parse", "--verify", "-q", "HEAD")
_LISTING = ("ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")


class Listing(NamedTuple):
    """The code files of the directory `root`: relative paths with slashes. `commit`: that of git, "" without one.
    `has_untracked`: git does not track some of them; `is_git`: git listed them."""

    root: str
    paths: tuple[str, ...]
    commit: str = ""
    has_untracked: bool = False
    is_git: bool = False


def list_files(root: str) -> Listing:
    """Return the code files of a directory: those that git tracks or does not ignore, without git all, except what
    .yardignore names. Raise CliError if it is no directory, .yardignore is unreadable, a file's name is not UTF-8, or
    without git a directory cannot be listed or there are more than WALK_MOST files."""
    if not os.path.isdir(root):
        raise CliError(f"--code {root}: there is no such directory", USAGE)
    ignore = _ignore(root)
    try:
        with_git = _with_git(root)
    except (FileNotFoundError, PermissionError):
        # There is no git.
        with_git = None
    if with_git is None:
        return Listing(root, tuple(_checked(ignore.kept(sorted(_walk(root, ignore))))))
    paths, untracked, commit = with_git
    kept = _checked(ignore.kept(paths))
    return Listing(root, tuple(kept), commit, not untracked.isdisjoint(kept), is_git=True)


@contextmanager
def asked_origin(listing: Listing) -> Iterator[Callable[[], dict[str, object]]]:
    """Context manager: ask git where a listing's files come from, and yield a function that waits for the answer and
    returns it as the server stores it: `commit`, `branch`, `is_dirty`, `diff` and `repository`; {} without git. Call it
    once."""
    if not listing.is_git:
        yield dict
        return
    diff = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", "--relative", "--", ".")
    running = {
        "diff": _git(listing.root, *diff) if listing.commit else None,
        "branch": _git(listing.root, "symbolic-ref", "--short", "-q", "HEAD"),
        "repository": _git(listing.root, "config", "--get", "remote.origin.url"),
    }
    try:
        yield partial(_origin, listing, running)
    finally:
        for process in filter(None, running.values()):
            # Ends what still runs, and closes its output.
            with process:
                process.kill()


def _origin(listing: Listing, running: Mapping[str, subprocess.Popen[bytes] | None]) -> dict[str, object]:
    said = {name: _said(process)[1] if process else b"" for name, process in running.items()}
    text = {name: out.decode(errors="replace").replace("\0", "\ufffd") for name, out in said.items()}
    is_dirty = bool(text["diff"]) or listing.has_untracked
    return {
        "commit": listing.commit,
        "branch": text["branch"].strip()[:255],
        "is_dirty": is_dirty,
        "diff": _cut(text["diff"], DIFF_MOST_BYTES),
        "repository": _without_credentials(text["repository"].strip())[:500],
    }


def _with_git(root: str) -> tuple[list[str], set[str], str] | None:
    """Return (paths, untracked paths, commit) of a directory by git, with the commit "" if there is none yet; None if
    git cannot list the directory, for example outside a repository."""
    listed, revision = _git(root, *_LISTING), _git(root, *_REVISION)
    code, out = _said(listed)
    commit = _said(revision)[1].decode().strip()
    if code != 0:
        return None
    paths: list[str] = []
    untracked: set[str] = set()
    has_submodules = os.path.exists(os.path.join(root, ".gitmodules"))
    for item in out.split(b"\0")[:-1]:
        path = os.fsdecode(item[2:])
        if path.endswith("/") or (has_submodules and os.path.isdir(os.path.join(root, path))):
            found = _of_repository_inside(root, path.rstrip("/"))
        else:
            found = [path]
        paths += found
        if item[:1] == b"?":
            untracked.update(found)
    return list(dict.fromkeys(paths)), untracked, commit


def _of_repository_inside(root: str, path: str) -> list[str]:
    """Return the files of the submodule or nested repository at `path`, relative to `root`; the path itself if it is
    a link, [] if git cannot list it."""
    if os.path.islink(os.path.join(root, path)):
        return [path]
    inside = _with_git(os.path.join(root, path))
    return [f"{path}/{name}" for name in inside[0]] if inside else []


def _git(root: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["git", "-C", root, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )


def _said(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    out, _ = process.communicate()
    return process.returncode, out


def _ignore(root: str) -> Ignore:
    try:
        with open(os.path.join(root, NAME), encoding="utf-8") as file:
            return Ignore(file)
    except FileNotFoundError:
        return Ignore(())
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{NAME} cannot be read: {error}", USAGE) from error


def _walk(root: str, ignore: Ignore) -> Iterator[str]:
    """Yield every file and link below a directory; skips .git and ignored directories, and follows no links. Raise
    CliError after more than WALK_MOST files, and for a directory that cannot be listed."""
    count = 0
    for folder, folders, files in os.walk(root, onerror=_refuse):
        below = os.path.relpath(folder, root).replace(os.sep, "/")
        prefix = "" if below == "." else f"{below}/"
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [
            name
            for name in folders
            if name != ".git" and name not in links and not ignore.leaves_out(prefix + name, is_folder=True)
        ]
        for name in (*files, *links):
            yield prefix + name
        count += len(files)
        if count > WALK_MOST:
            hint = f"is this your code? name what does not belong to it in {os.path.join(root, NAME)}"
            raise CliError(f"{root} has more than {WALK_MOST:,} files", USAGE, hint)


def _refuse(error: OSError) -> None:
    # Removed since it was listed.
    if isinstance(error, FileNotFoundError):
        return
    hint = f"correct its permissions, or leave it out in {NAME}"
    raise CliError(f"{error.filename} cannot be listed: {error.strerror}", USAGE, hint)


def _checked(paths: list[str]) -> list[str]:
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(path).decode(errors="backslashreplace")
            hint = f"rename it, or leave it out in {NAME}"
            raise CliError(f"the name of {shown} is not UTF-8", USAGE, hint) from None
    return paths


def _without_credentials(url: str) -> str:
    scheme, found, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if found and "@" in rest.partition("/")[0] else url


def _cut(text: str, most_bytes: int) -> str:
    raw = text.encode()
    return text if len(raw) <= most_bytes else raw[:most_bytes].decode(errors="ignore")
