"""Code trees for tests: entries, archives, and stored trees of a project."""

import hashlib
import io
import tarfile
from collections.abc import Mapping
from typing import Any

from controlplane.access import SYSTEM
from controlplane.models import Project
from datasets.actions.code import begin_upload, commit_tree, receive_files, uploaded_files
from datasets.code_manifest import Entry, file_entry
from datasets.queries.code import SCHEME

Files = Mapping[str, bytes]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def entries_of(files: Files) -> list[Entry]:
    return [file_entry(path, len(content), sha256(content)) for path, content in files.items()]


def listed(files: Files) -> list[dict[str, Any]]:
    """Return the files as an upload request lists them."""
    return [{"path": path, "size": len(content), "hash": sha256(content)} for path, content in files.items()]


def archive(*contents: bytes) -> bytes:
    """Return a tar in which files are uploaded: each member is named by its hash."""
    return tar({sha256(content): content for content in contents})


def tar(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    """Return a tar of these members: a name -> its bytes, or its header alone."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as made:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                made.addfile(content)
                continue
            header = tarfile.TarInfo(name)
            header.size = len(content)
            made.addfile(header, io.BytesIO(content))
    return file.getvalue()


def make_tree(project: Project, files: Files, **about: Any) -> str:
    """Store a tree for the project; return the URL with which a job names it. `about`: fields of its origin."""
    digest, missing = begin_upload(project, entries_of(files))
    sent = {sha256(content): content for content in files.values()}
    receive_files(project, digest, io.BytesIO(archive(*(sent[key] for key in missing))))
    commit_tree(project, digest, uploaded_files(project, digest), about, actor=SYSTEM)
    return SCHEME + digest
