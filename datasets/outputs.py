"""Provide the directory from which an artifact is made: a job's own working directory, or a copy from its
cluster."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

from django.conf import settings

from controlplane.commands.errors import CommandRefused
from controlplane.commands.run import CommandRun
from controlplane.config.work_directories import checkpoint_directory, job_directory, work_directory
from controlplane.engines.kinds import engine_kind
from controlplane.loop.engine_pool import engine_for
from controlplane.notation import binary_bytes, decimal_bytes, some_of
from datasets.long_work import budget_of, refusals
from datasets.models import Artifact
from datasets.queries.datasets import shown
from datasets.storage.base import DISK_FULL, Budget
from datasets.storage.claims import OutputTask
from jobs.fields.artifacts import CHECKPOINTS

# Folder below the state directory for copies in progress.
FOLDER = "outputs"
# Free space that copies must leave on the disk, which is that of the state directory, and so of logs too.
MARGIN_BYTES = 1 << 30
FILES_MOST = 1_000_000


class OutputReader(Protocol):
    """Reads the output of a project's jobs (implemented by engines.kubernetes.output_reader)."""

    def copy(
        self, task: OutputTask, target: Path, budget: Budget, report: Callable[[int, int, int, int], None]
    ) -> None:
        """Copy the directory of a job's output that `task` names into the empty directory `target`. `report`
        receives (files copied, files announced, bytes copied, bytes announced). Raises Blocked if the pod cannot
        run or fails, and what `budget` and `report` raise."""


class OutputEngine(Protocol):
    """Additional methods of engines whose kind has `copies_outputs`."""

    def outputs(self, project: str) -> OutputReader:
        """Return the reader of the working directories of a project's jobs."""


@contextmanager
def output_of(artifact: Artifact, run: CommandRun) -> Iterator[Path]:
    """Context manager that yields the directory from which the artifact is made; it exists until the block ends.
    Raises CommandRefused if the directory is missing, unreadable or too large, EngineUnreachable if the cluster
    does not answer."""
    if engine_kind(artifact.project.cluster.engine).copies_outputs:
        with _copied(artifact, run) as place:
            yield place
        return
    try:
        found = output_directory(artifact)
    except OSError as error:
        words = f"{artifact.path} cannot be read: {error.strerror}."
        raise CommandRefused("output_unreadable", words) from error
    yield found


@contextmanager
def _copied(artifact: Artifact, run: CommandRun) -> Iterator[Path]:
    folder, project = settings.STATE_DIR / FOLDER, artifact.project
    folder.mkdir(mode=0o700, exist_ok=True)
    place = folder / str(artifact.pk)
    _remove_leftovers(folder, place.name)
    place.mkdir()

    def report(files: int, size: int, all_files: int, all_bytes: int) -> None:
        refuse_more(artifact.path, all_files, all_bytes)
        # Checked at each report, because concurrent copies fill the same disk.
        _refuse_full(folder, artifact.path, all_bytes - size)
        run.report(size, all_bytes, f"{files} files copied")

    first, _, rest = artifact.path.partition("/")
    is_of_checkpoints = first == CHECKPOINTS
    path = rest if is_of_checkpoints else artifact.path
    task = OutputTask(str(artifact.pk), str(artifact.job_id), path, is_of_checkpoints)
    try:
        engine = cast(OutputEngine, engine_for(project.cluster))
        with refusals():
            engine.outputs(project.name).copy(task, place, budget_of(run), report)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _refuse_full(folder: Path, path: str, size: int) -> None:
    """Raise CommandRefused, as a temporary refusal, if the folder's disk has no space for `size` bytes."""
    free = max(0, shutil.disk_usage(folder).free - MARGIN_BYTES)
    if size > free:
        needed = f"Copying {path} needs {decimal_bytes(size)}"
        words = f"{needed}, and the control plane's disk has {decimal_bytes(free)} free."
        # Temporary, since other copies end.
        raise CommandRefused(DISK_FULL, words, is_passing=True)


def _remove_leftovers(folder: Path, own: str) -> None:
    """Remove copies that killed workers left in `folder`: those of artifacts that are no longer being stored, and
    `own`, the one of the caller's artifact."""
    names = set(os.listdir(folder))
    rows = Artifact.objects.filter(pk__in=names, state=Artifact.KEEPING)
    kept = set(map(str, rows.values_list("pk", flat=True)))
    for name in names - kept | names & {own}:
        shutil.rmtree(folder / name, ignore_errors=True)


def output_directory(artifact: Artifact) -> Path:
    """Return the directory of an artifact in a local job. Raises CommandRefused if it does not exist, and for
    a path through a symbolic link, which could lead anywhere."""
    first, _, rest = artifact.path.partition("/")
    state_dir, job = settings.STATE_DIR, str(artifact.job_id)
    if first == CHECKPOINTS:
        steps, place = rest, checkpoint_directory(state_dir, job)
    else:
        steps, place = artifact.path, work_directory(state_dir, job, 0)
    # The first path, "", is the directory itself, which a job can also replace by a link.
    for step in ("", *filter(None, steps.split("/"))):
        place = place / step
        if place.is_symlink():
            words = f"{place.name} of {artifact.path} is a link; write a directory."
            raise CommandRefused("output_is_link", words)
    if not place.is_dir():
        there = _entries(work_directory(state_dir, job, 0))
        words = f"The job left no directory {artifact.path}. Its working directory has {there}."
        raise CommandRefused("output_missing", words)
    assert place.is_relative_to(job_directory(state_dir, job))
    return place


def _entries(directory: Path) -> str:
    if not directory.is_dir():
        return "nothing"
    names = sorted(shown(name) for name in os.listdir(os.fsencode(directory)))
    return some_of(names) or "nothing"


def refuse_more(path: str, files: int, size: int) -> None:
    """Raise CommandRefused if an artifact has more `files` or more bytes (`size`) than it may. `path`: the
    artifact's path, for the message."""
    if files > FILES_MOST:
        words = f"{path} has {files:,} files or more, at most {FILES_MOST:,} are kept; write archives."
        raise CommandRefused("too_many_files", words)
    most = settings.ARTIFACT_MOST_BYTES
    if size > most:
        words = (
            f"{path} has {binary_bytes(size)} or more, at most {binary_bytes(most)} are kept. Keep a part of it, or"
            " have an admin raise TRAINYARD_ARTIFACT_MOST_GIB."
        )
        raise CommandRefused("artifact_too_large", words)
