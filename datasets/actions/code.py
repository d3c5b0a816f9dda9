"""Verbs on code trees. Files are stored outside of transactions; the row is created once all files of a tree
are stored."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.access import Actor
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict, Invalid, invalid
from controlplane.fields import FieldError
from controlplane.models import Event, Project
from datasets.code_archive import MOST_BESIDE, MOST_PER_FILE, ArchiveRefused, read_archive
from datasets.code_manifest import Entry, TreeRefused, checked, tree_hash
from datasets.code_store import ContentDiffers, ProjectCode, check_content
from datasets.models import CodeTree
from datasets.queries.code import SCHEME, code_of

DIFF_MOST_CHARACTERS = 256 * 1024


def begin_upload(
    project: Project,
    entries: Sequence[Entry],
    *,
    parent: str = "",
    removed: Collection[str] = (),
    contents: Sequence[bytes] = (),
    is_dry_run: bool = False,
) -> tuple[str, dict[str, int]]:
    """Store the file list of a tree that is to be uploaded. Return the tree's digest, and (hash -> size in bytes)
    of the contents that the project lacks. `parent`: digest of a complete tree, whose files are kept except those at
    the paths of `entries` and in `removed`. `contents`: contents of entries, stored at once. `is_dry_run`: store
    nothing. Raises Invalid for a tree that is not accepted and for contents that are not in it, Conflict if there is
    no such parent."""
    store = code_of(project)
    kept = _kept(store, parent, {entry.path for entry in entries}, removed)
    try:
        tree = checked(entries, settings.CODE_MOST_BYTES, kept)
    except TreeRefused as refused:
        is_listed = refused.index is not None and refused.index < len(entries)
        pointer = f"/files/{refused.index}" if is_listed else "/files"
        raise Invalid(FieldError(pointer, refused.code, refused.detail)) from refused
    sent = _by_hash(contents, entries)
    digest, missing = (tree_hash(tree), store.missing(entries)) if is_dry_run else store.begin(tree, entries)
    for sha256 in missing.keys() & sent.keys():
        if not is_dry_run:
            store.put(sha256, [sent[sha256]])
        del missing[sha256]
    # From now on the tree's own list protects the files that are kept. Until here the parent's did.
    if parent and not store.has(parent):
        raise _parent_unknown()
    if not missing and not is_dry_run:
        store.finish(digest)
    return digest, missing


def _kept(store: ProjectCode, parent: str, replaced: set[str], removed: Collection[str]) -> list[Entry]:
    """Return the entries of the tree `parent` (its digest, "" for none) whose paths are neither `replaced` nor
    `removed`."""
    try:
        entries = store.entries(parent) if parent else ()
    except FileNotFoundError as error:
        raise _parent_unknown() from error
    if unknown := set(removed).difference(entry.path for entry in entries):
        raise invalid("/removed", "not_in_parent", f"The parent has no file {min(unknown)[:200]!r}.")
    gone = replaced.union(removed)
    return [entry for entry in entries if entry.path not in gone]


def _parent_unknown() -> Conflict:
    detail = (
        "The project has no such tree, or it was removed; send the whole list of files, without a parent."
    )
    return Conflict("parent_unknown", detail)


def _by_hash(contents: Iterable[bytes], entries: Iterable[Entry]) -> dict[str, bytes]:
    sizes = {entry.sha256: entry.size for entry in entries}
    sent = {hashlib.sha256(content).hexdigest(): content for content in contents}
    for sha256, content in sent.items():
        if sizes.get(sha256) != len(content):
            detail = (
                f"A content with the hash {sha256} is of no file in the list; it changed while it was read."
            )
            raise invalid("/contents", "content_differs", detail)
    return sent


def upload_room(project: Project, digest: str) -> int:
    """Return how many bytes an archive of the tree's files may have at most. Raises Conflict for a tree whose upload
    was not begun."""
    # Of all its files: another upload of the same tree, or a first try of this one, may store some meanwhile.
    sizes = {entry.sha256: entry.size for entry in _begun(project, digest)}
    return sum(sizes.values()) + len(sizes) * MOST_PER_FILE + MOST_BESIDE


def receive_files(
    project: Project, digest: str, archive: BinaryIO, *, is_dry_run: bool = False
) -> dict[str, int]:
    """Store the files of a tar archive; return (hash -> size in bytes) of the contents still missing. Files
    before a refused one are stored. `is_dry_run`: check the archive and store nothing. Raises Conflict for a tree
    whose upload was not begun, Invalid for a file that does not belong to it or is damaged."""
    store, entries = code_of(project), _begun(project, digest)
    wanted = {entry.sha256: entry.size for entry in entries}
    try:
        for sha256, pieces in read_archive(archive, wanted):
            (check_content if is_dry_run else store.put)(sha256, pieces)
    except ArchiveRefused as refused:
        raise invalid("/", refused.code, refused.detail) from refused
    except ContentDiffers as differs:
        raise invalid("/", "content_differs", f"{differs} Send it again.") from differs
    return store.missing(entries)


def uploaded_files(project: Project, digest: str) -> tuple[Entry, ...]:
    """Return the files of an uploaded tree, for `commit_tree`. Looks at each on the disk: call it outside of
    transactions. Raises Conflict for a tree whose upload was not begun, and while files are missing."""
    store, entries = code_of(project), _begun(project, digest)
    if store.is_pending(digest) and (missing := store.missing(entries)):
        raise Conflict("tree_incomplete", f"{len(missing)} files of the tree are missing; upload them first.")
    return entries


def commit_tree(
    project: Project, digest: str, entries: Sequence[Entry], about: Mapping[str, Any], *, actor: Actor
) -> CodeTree:
    """Return the row of an uploaded tree, which is created unless it exists; jobs can use the tree afterwards.
    `entries`: its `uploaded_files`; `about`: its origin (fields of CodeTree). Safe to repeat."""
    code_of(project).finish(digest)
    diff = about.get("diff", "")
    origin = {name: value for name, value in about.items() if name != "commit"}
    origin |= {"diff": diff[:DIFF_MOST_CHARACTERS], "is_diff_cut": len(diff) > DIFF_MOST_CHARACTERS}
    size = {"files": len(entries), "size_bytes": sum(entry.size for entry in entries)}
    with transaction.atomic():
        row, is_new = CodeTree.objects.get_or_create(
            project=project,
            digest=digest,
            commit=about.get("commit", ""),
            defaults={**origin, **size, "created_by": actor.name},
        )
        row.used_at = timezone.now()
        row.save(update_fields=["used_at"])
        if is_new:
            after = {"project": project.name, "commit": row.commit, **size}
            write_audit(actor, "code.upload", "code", SCHEME + digest, after=after)
            Event.objects.append(
                [Event(kind="code.uploaded", project_id=project.pk, actor=actor.name, data=after)]
            )
    return row


def use_trees(project: Project, digests: Iterable[str]) -> None:
    """Mark code trees (by digest) as used by jobs that are being submitted, which protects them from removal.
    Call it in the transaction that submits the jobs. Raises Conflict for a tree that was removed since it was
    looked up."""
    # In one order: two batches that name the same trees would wait for each other's rows.
    for digest in sorted(set(digests)):
        if not CodeTree.objects.filter(project=project, digest=digest).update(used_at=timezone.now()):
            raise Conflict("code_removed", "The job's code was removed meanwhile; upload it again.")


def _begun(project: Project, digest: str) -> tuple[Entry, ...]:
    entries = code_of(project).pending(digest)
    if entries is None:
        detail = "The upload of this tree was not begun, or has expired; send the list of its files first."
        raise Conflict("tree_not_begun", detail)
    return entries
