"""Command handler that stores a directory of a job's output in the project's lake."""

import os
from pathlib import Path

from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.models import Command, Project
from datasets.actions.artifacts import KEEP, StoredArtifact, artifact_failed, artifact_ready, artifact_waits
from datasets.ingest.engine import Synced, sync_tree
from datasets.ingest.reading import Progress
from datasets.ingest.tree import Directory, SourceMissing, walk
from datasets.ingest.worker import WorkerFailed
from datasets.long_work import DATA, all_read, is_cancelled, left_out, refusals
from datasets.manifests import Manifest
from datasets.models import Artifact
from datasets.outputs import output_of, refuse_more
from datasets.queries.lake import lake_address, lake_of
from datasets.storage.base import DISK_FULL, NOT_MOUNTED
from datasets.storage.sinks import sink_of


@register
class KeepArtifact(CommandHandler):
    """Hash a directory of an ended job and store the contents that the lake lacks. Safe to repeat."""

    kind, queue = KEEP, DATA
    # Retry for four hours: a failed artifact is not retried later, so the command must outlast an unreachable
    # lake.
    max_tries, backoff_seconds = 50, (1, 5, 30, 300)

    def run(self, run: CommandRun) -> StoredArtifact | None:
        artifact = (
            Artifact.objects.select_related("project__cluster").filter(pk=run.command.subject_id).first()
        )
        if artifact is None:
            return None
        with refusals(), output_of(artifact, run) as root:
            _refuse_size(artifact, root)
            return _kept(artifact, _synced(artifact.project, root, run))

    def may_retry(self, command: Command, refusal: CommandRefused) -> bool:
        # An admin must free space, or mount the disk, first; keep the artifact until then.
        return refusal.code in (DISK_FULL, NOT_MOUNTED) or super().may_retry(command, refusal)

    def on_done(self, command: Command, result: StoredArtifact | None) -> None:
        if result is not None:
            artifact_ready(command.subject_id, result)

    def on_retry(self, command: Command, refusal: CommandRefused) -> None:
        artifact_waits(command.subject_id, refusal.message)

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        artifact_failed(command.subject_id, refusal.code, refusal.message)


def _refuse_size(artifact: Artifact, root: Path) -> None:
    """Raise CommandRefused for a directory that is missing, without files or beyond the limits, as soon as that is
    known and before any file is read."""
    files = size = 0

    def note(directory: Directory) -> None:
        nonlocal files, size
        files += len(directory.rows)
        size += sum(row[2] for row in directory.rows)
        refuse_more(artifact.path, files, size)

    try:
        walk(os.fsencode(root), note)
    except SourceMissing as error:
        raise CommandRefused("output_missing", str(error)) from error
    if not files:
        raise CommandRefused("output_empty", f"{artifact.path} has no files.")


def _synced(project: Project, root: Path, run: CommandRun) -> Synced:
    def report(progress: Progress) -> bool:
        is_cancelled(run)
        run.report(progress.bytes_done, progress.size_bytes, f"{progress.files_done} files")
        return True

    try:
        return sync_tree(root, sink_of(*lake_address(str(project.pk))), report=report)
    except WorkerFailed as error:
        raise CommandRefused("output_not_stored", str(error), is_passing=True) from error


def _kept(artifact: Artifact, found: Synced) -> StoredArtifact:
    manifest = all_read(found)
    _store(artifact.project, manifest)
    return StoredArtifact(len(manifest), manifest.size_bytes, manifest.hash, left_out(found))


def _store(project: Project, manifest: Manifest) -> None:
    """Store the manifest, and protect its contents from collection. Raises CommandRefused, to be retried, if a
    content was removed meanwhile."""
    lake = lake_of(project)
    contents = set(manifest.contents())
    with lake.in_use():
        if lake.lacking(contents):
            raise CommandRefused("content_missing", "Content was removed meanwhile.", is_passing=True)
        lake.renew(contents)
        lake.put_manifest(manifest.hash, manifest.encode())
