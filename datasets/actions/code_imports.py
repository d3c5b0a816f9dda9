"""Import code from a git repository: the request, and the work that a Celery worker does for it."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.access import SYSTEM, Actor, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict, Invalid
from controlplane.fields import LONGEST_MESSAGE, FieldError
from controlplane.models import Command, Project
from datasets.actions.code import begin_upload, commit_tree, uploaded_files
from datasets.git_source import GitSource, is_allowed
from datasets.models import CodeImport
from datasets.queries.code import code_of

IMPORT_CODE, CODE_IMPORT = "datasets.import_code", "code_import"  # kind and subject of the commands
# Folder below the state directory for repositories while they are read.
FOLDER = "git"
# Limit on unfinished imports per project, because all projects share the worker's few slots.
PENDING_MOST = 20
REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,254}")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# Environment variables that git receives: certificates, proxies, keys and its configuration. The others may hold
# secrets of the control plane.
PASSED = (
    "PATH",
    "HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSH_AUTH_SOCK",
)


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of a finished import: the hash of the tree (`digest`), and the git commit that it was made from."""

    digest: str
    commit: str


def request_import(project: Project, url: str, ref: str, *, actor: Actor) -> CodeImport:
    """Queue and return an import of the commit that `ref` names in a repository, for a worker. Raises Invalid for
    a URL that no admin has allowed and for a malformed ref, Conflict while PENDING_MOST imports of the project
    are unfinished."""
    if not is_allowed(url, settings.GIT_SOURCES):
        allowed = ", ".join(settings.GIT_SOURCES) or "none"
        detail = f"{url} may not be fetched. TRAINYARD_GIT_SOURCES allows: {allowed}."
        raise Invalid(FieldError("/url", "repository_not_allowed", detail))
    if not REF.fullmatch(ref) or ".." in ref:
        raise Invalid(FieldError("/ref", "not_a_ref", "A ref is a branch, a tag or a commit's full hash."))
    with transaction.atomic():
        # The lock serialises requests, so that the second counts the first.
        reread(project, lock=True)
        if CodeImport.objects.filter(project=project, state=CodeImport.PENDING).count() >= PENDING_MOST:
            detail = f"{project.name} has {PENDING_MOST} imports under way; wait until one has ended."
            raise Conflict("too_many_imports", detail)
        row = CodeImport.objects.create(project=project, url=url, ref=ref, created_by=actor.user)
        Command.objects.create(kind=IMPORT_CODE, subject_kind=CODE_IMPORT, subject_id=str(row.pk))
        after = {"project": project.name, "url": url, "ref": ref}
        write_audit(actor, "code.import", "code_import", str(row.pk), after=after)
    return row


def fetch_code(row: CodeImport, check: Callable[[], None]) -> Imported:
    """Fetch the commit, store its files as code of the project, create the row of the tree and return its digest
    and commit. Safe to repeat. `check` is called regularly; its exceptions end the work. Raises GitRefused if the
    commit cannot be fetched, TreeRefused or Invalid if its tree is not accepted."""
    environment = {name: os.environ[name] for name in PASSED if name in os.environ}
    work = settings.STATE_DIR / FOLDER
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    # In this folder, where `remove_left_repositories` finds what a killed worker has left.
    with tempfile.TemporaryDirectory(dir=work) as folder:
        source = GitSource(Path(folder), environment)
        commit = source.fetch(row.url, row.ref, settings.CODE_MOST_BYTES, check)
        digest = _keep(row, check, source, commit)
    is_hash = COMMIT.fullmatch(row.ref) is not None
    about = {"commit": commit, "branch": "" if is_hash else row.ref, "repository": row.url, "source": "git"}
    actor, files = Actor(row.created_by) if row.created_by else SYSTEM, uploaded_files(row.project, digest)
    commit_tree(row.project, digest, files, about, actor=actor)
    return Imported(digest, commit)


def _keep(row: CodeImport, check: Callable[[], None], source: GitSource, commit: str) -> str:
    """Store those of the commit's files that the project lacks; return the tree's digest. `check` is called before
    each file and may raise to cancel."""
    entries, names = source.entries(commit, settings.CODE_MOST_BYTES, check)
    digest, missing = begin_upload(row.project, entries)
    store = code_of(row.project)
    with source.reader() as read:
        for sha256 in missing:
            check()
            store.put(sha256, read(names[sha256]))
    return digest


def finish_import(import_id: str, found: Imported) -> None:
    """Mark an unfinished import (by id) as ready; `found` names its tree, whose row `fetch_code` has created."""
    _pending(import_id).update(
        state=CodeImport.READY, digest=found.digest, commit=found.commit, finished_at=timezone.now()
    )


def fail_import(import_id: str, code: str, message: str) -> None:
    """Mark an unfinished import (by id) as failed, with a reason code and a message."""
    _pending(import_id).update(
        state=CodeImport.FAILED, reason=code, message=message[:LONGEST_MESSAGE], finished_at=timezone.now()
    )


def remove_left_repositories(before: float) -> None:
    """Remove temporary repositories of killed workers: those that have not changed since `before` (Unix time)."""
    work = settings.STATE_DIR / FOLDER
    for folder in work.iterdir() if work.is_dir() else ():
        # The import may end meanwhile and remove its repository.
        with suppress(FileNotFoundError):
            if folder.stat().st_mtime < before:
                shutil.rmtree(folder, ignore_errors=True)


def _pending(import_id: str) -> QuerySet[CodeImport]:
    return CodeImport.objects.filter(pk=import_id, state=CodeImport.PENDING)
