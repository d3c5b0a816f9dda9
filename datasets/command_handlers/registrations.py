"""Command handler that creates a version from a directory of this machine."""

import time
from pathlib import Path
from typing import NamedTuple

from controlplane.actions.errors import Conflict, Invalid
from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.models import Command
from datasets.actions.registrations import (
    REGISTER,
    allowed_sources,
    commit_registration,
    fail_registration,
    finish_registration,
    note_progress,
    registration_waits,
)
from datasets.ingest.engine import Synced, sync_tree
from datasets.ingest.reading import Progress
from datasets.ingest.tree import SourceMissing
from datasets.ingest.worker import SinkSpec, WorkerFailed
from datasets.long_work import DATA, LAKE_AWAY, all_read, is_cancelled, left_out, refusals
from datasets.models import DatasetRegistration, DatasetVersion
from datasets.queries.lake import lake_address
from datasets.storage.base import NOT_MOUNTED
from datasets.storage.contents import Sharing
from datasets.storage.folder_sink import sink_of_folder
from datasets.storage.sinks import sink_of_bucket

# Shortest interval between two progress reports, because each is a write to the database.
REPORT_SECONDS = 1.0


class Registered(NamedTuple):
    """The version of the directory, and sentences about it: see `_remarks`."""

    version: DatasetVersion
    remarks: str


@register
class RegisterDirectory(CommandHandler):
    """Hash a directory and create a version of it. The lake shares the files' bytes if the file system can; a
    repeat does not store contents again."""

    kind, queue = REGISTER, DATA

    def run(self, run: CommandRun) -> Registered | None:
        rows = DatasetRegistration.objects.select_related("dataset__project", "created_by")
        row = rows.filter(pk=run.command.subject_id, state=DatasetRegistration.PENDING).first()
        if row is None:
            return None
        if row.path not in allowed_sources():
            raise CommandRefused("path_not_allowed", f"{row.path} is not allowed any more.")
        with refusals():
            found = _synced(row, run)
            manifest = all_read(found)
            if not len(manifest):
                raise CommandRefused("no_files", f"{row.path} has no files.")
            try:
                version = commit_registration(row, manifest)
            except Conflict as conflict:
                raise CommandRefused(conflict.code, conflict.detail, is_passing=True) from conflict
            except Invalid as refused:
                raise CommandRefused(refused.errors[0].code, refused.errors[0].detail) from refused
        return Registered(version, _remarks(row, version, found))

    def on_done(self, command: Command, result: Registered | None) -> None:
        if result is not None:
            finish_registration(command.subject_id, result.version, result.remarks)

    def may_retry(self, command: Command, refusal: CommandRefused) -> bool:
        return refusal.code in (NOT_MOUNTED, *LAKE_AWAY) or super().may_retry(command, refusal)

    def on_retry(self, command: Command, refusal: CommandRefused) -> None:
        registration_waits(command.subject_id, refusal.code, refusal.message)

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        fail_registration(command.subject_id, refusal.code, refusal.message)


def _remarks(row: DatasetRegistration, version: DatasetVersion, found: Synced) -> str:
    """Return sentences about a registration that has ended with `version`: that nothing changed, and which files were
    left out. "" for neither."""
    # Not whether this try created it: an earlier try may have, and was killed before it wrote so.
    old = f"Nothing changed since version {version.number}." if version.created_at < row.created_at else ""
    return " ".join(filter(None, (old, left_out(found))))


def _synced(row: DatasetRegistration, run: CommandRun) -> Synced:
    reported = time.monotonic()

    def report(progress: Progress) -> bool:
        nonlocal reported
        is_cancelled(run)
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            done = {"files_done": progress.files_done, "bytes_done": progress.bytes_done}
            note_progress(row, files=progress.files, size_bytes=progress.size_bytes, **done)
        return True

    try:
        return sync_tree(Path(row.path), _sink(row), report=report)
    except SourceMissing as error:
        raise CommandRefused("source_missing", str(error)) from error
    except WorkerFailed as error:
        code = error.code if error.code in LAKE_AWAY else "not_stored"
        raise CommandRefused(code, str(error), is_passing=True) from error


def _sink(row: DatasetRegistration) -> SinkSpec:
    """Return the sink of the project's lake. A hard link makes the source file read-only, so only an admin
    may enable it."""
    folder, config = lake_address(str(row.dataset.project_id))
    if config is not None:
        return sink_of_bucket(folder, config)
    may_link = allowed_sources()[row.path]
    return sink_of_folder(folder, Sharing.HARD_LINK if may_link else Sharing.REFLINK)
