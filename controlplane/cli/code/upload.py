"""Upload a directory's code: only the files that the server lacks."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import partial

from controlplane.cli import formats
from controlplane.cli.code.change import Change, LastUpload
from controlplane.cli.code.ignore import NAME
from controlplane.cli.code.listing import Listing, asked_origin, list_files
from controlplane.cli.code.tree import Tree, read_tree, too_large
from controlplane.cli.errors import CONFLICT, ApiError, CliError
from controlplane.cli.session import Session
from datasets.code_manifest import EXECUTABLE, LINK, Entry

# Attempts: files that change during the upload are hashed and sent again.
TRIES = 3
# Limit on the files of one request, in bytes.
PART_BYTES = 32 << 20
# Contents of at most as many bytes in all go with the list of files.
AT_ONCE_BYTES = 256 << 10
_BLOCK = 512
# Files changed while they were sent, or the server lacks a tree, or a file of it, that was uploaded before.
_TRIED_AGAIN = ("content_differs", "parent_unknown", "tree_incomplete")
_TOO_LARGE = ("tree_too_large", "too_many", "too_many_files", "body_too_large")


def bring_code(session: Session, root: str, environ: dict[str, str]) -> dict[str, str]:
    """Upload the code files of a directory that the server lacks, and return the `code` field of a job's spec.
    Repeats that if files change meanwhile. Raise CliError as `list_files` and `read_tree`, if the server refuses the
    tree, and if files change at every attempt."""
    root = os.path.abspath(os.path.expanduser(root))
    last = LastUpload(session, root, environ)
    for attempt in range(1, TRIES + 1):
        listing = list_files(root)
        tree = read_tree(listing, environ)
        try:
            is_known = not last.differs_from(tree) and _is_known(session, tree, listing)
            sent = [] if is_known else _upload(session, tree, listing, last.change_to(tree))
        except ApiError as refused:
            if refused.code == "content_differs" and attempt == TRIES:
                raise _changing(tree, environ) from refused
            if refused.code not in _TRIED_AGAIN or attempt == TRIES:
                raise
            last.forget()
            continue
        last.remember(tree)
        session.output.say(_summary(tree, listing, sent))
        return {"tree": f"sha256:{tree.digest}", "commit": listing.commit}
    raise AssertionError("the last attempt raises or returns")


def _changing(tree: Tree, environ: dict[str, str]) -> CliError:
    """Return the CliError for a tree whose files changed at every attempt; it names those that differ again now."""
    now = read_tree(list_files(tree.root), environ)
    names = [file.path for file in sorted(set(tree.files).difference(now.files))]
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    which = f"files change while they are sent: {', '.join(names[:5])}{more}"
    hint = f"submit again once nothing writes them, or name them in {NAME}"
    return CliError(which if names else "files changed while they were sent", CONFLICT, hint)


def _is_known(session: Session, tree: Tree, listing: Listing) -> bool:
    try:
        session.get(_path(session, tree), commit=listing.commit)
    except ApiError as refused:
        if refused.status != 404 or refused.code != "not_found":
            raise
        return False
    return True


def _upload(session: Session, tree: Tree, listing: Listing, change: Change) -> list[Entry]:
    """Send what has changed and the server lacks; return the files sent, one per content. Raise CliError if the tree
    is too large or the server computes another hash, ApiError for other refusals."""
    # Git answers while the server looks for the files.
    with asked_origin(listing) as origin:
        sent = _send_missing(session, tree, change)
        session.client.post(f"{_path(session, tree)}/commit", origin())
    return sent


def _send_missing(session: Session, tree: Tree, change: Change) -> list[Entry]:
    client, files = session.client, {file.sha256: file for file in change.files if file.kind != LINK}
    small = list(files.values()) if sum(file.size for file in files.values()) <= AT_ONCE_BYTES else []
    try:
        begun = client.post(f"{session.project_path}/code", _begin(tree, change, small))
    except ApiError as refused:
        if refused.code in _TOO_LARGE:
            raise too_large(tree, refused.message) from refused
        raise
    if begun["tree"] != f"sha256:{tree.digest}":
        raise CliError(f"the server calls this tree {begun['tree']}: it is of another version than this yard")
    missing = [files[sha256] for sha256 in begun["missing"]]
    for part in _parts(missing):
        size = sum(_padded(file.size) + _BLOCK for file in part) + 2 * _BLOCK
        client.upload(
            f"{_path(session, tree)}/content", partial(_archive, tree, part), size, "application/x-tar"
        )
    return small or missing


def _begin(tree: Tree, change: Change, small: Sequence[Entry]) -> dict[str, object]:
    """Return the body of the request that begins an upload, with the contents of the `small` files."""
    body: dict[str, object] = {"files": [listed(file) for file in change.files]}
    if change.parent:
        body |= {"parent": f"sha256:{change.parent}", "removed": change.removed}
    if small:
        body["contents"] = [b64encode(_content(tree.root, file)).decode() for file in small]
    return body


def listed(file: Entry) -> dict[str, object]:
    """Return a file as a REST object: {"path", "size", "hash"} with "executable" if it is, or {"path", "link"}."""
    if file.kind == LINK:
        return {"path": file.path, "link": file.target}
    shown: dict[str, object] = {"path": file.path, "size": file.size, "hash": file.sha256}
    return shown | ({"executable": True} if file.kind == EXECUTABLE else {})


def _path(session: Session, tree: Tree) -> str:
    return f"{session.project_path}/code/sha256:{tree.digest}"


def _parts(files: Sequence[Entry]) -> Iterator[list[Entry]]:
    part: list[Entry] = []
    size = 0
    for file in files:
        if part and size + file.size > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(file)
        size += file.size
    if part:
        yield part


def _archive(tree: Tree, files: Sequence[Entry]) -> Iterator[bytes]:
    """Yield a tar of these files, each named by its hash. Its length was announced, so a file whose size has changed
    since is truncated or padded; the server then refuses it by its hash."""
    for file in files:
        content = _content(tree.root, file)
        yield _header(file) + content + bytes(_padded(file.size) - file.size)
    yield bytes(2 * _BLOCK)


def _content(root: str, file: Entry) -> bytes:
    try:
        with open(os.path.join(root, file.path), "rb") as opened:
            return opened.read(file.size).ljust(file.size, b"\0")
    except OSError:
        return bytes(file.size)


def _header(file: Entry) -> bytes:
    """Return the tar header (POSIX ustar) of a plain file."""
    name = file.sha256.encode().ljust(100, b"\0")
    start = name + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % file.size + b"%011o\0" % 0
    end = (b"0" + bytes(100) + b"ustar\x0000").ljust(_BLOCK - len(start) - 8, b"\0")
    return start + b"%06o\0 " % (sum(start) + 8 * 32 + sum(end)) + end


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _summary(tree: Tree, listing: Listing, sent: list[Entry]) -> str:
    of = f" of {listing.commit[:10]}" if listing.commit else ""
    what = f"code{of}: {formats.counted_files(len(tree.files))}, {formats.size(tree.size_bytes)}"
    if not sent:
        return f"{what}, all known to the server"
    return f"{what}; sent {len(sent):,}, {formats.size(sum(file.size for file in sent))}"
