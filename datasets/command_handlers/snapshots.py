"""Command handlers that take and remove snapshots."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.utils import timezone

from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.engines.base import NOT_PERMITTED
from controlplane.models import Command
from datasets.actions.snapshots import (
    REMOVE,
    TAKE,
    snapshot_cut,
    snapshot_failed,
    snapshot_gone,
    snapshot_not_removed,
    snapshot_ready,
    snapshot_waits,
)
from datasets.long_work import DATA, Removal, budget_of, refusals
from datasets.models import Snapshot, Volume
from datasets.models.volumes import DELETING, READY
from datasets.pod_quiesce import PodPause, quiesced_by_pod
from datasets.queries.due_snapshots import later_writers
from datasets.queries.volumes import claims_volumes, writing_jobs, writing_pods
from datasets.storage.base import DISK_FULL, NOT_MOUNTED
from datasets.storage.claims import NOT_DELETED
from datasets.storage.quiesce import LONGEST_PAUSE_SECONDS, Pause, quiesced
from datasets.storage.volume_files import VolumeFiles
from datasets.storage.volumes import Taken, VolumeStorage
from datasets.volume_storage import storage_of_snapshot

# Consistency of a snapshot, relative to programs that wrote while it was taken.
IDLE, QUIESCED, CRASH = "idle", "quiesced", "crash"
# A driver may take about 20 seconds, which are these tries, to delete a snapshot; after that it is a problem to show.
UNSHOWN_TRIES = 4
# How long a snapshot is tried again on a full disk: its event does not come again.
FULL_DISK_WITHIN = timedelta(hours=1)


@register
class TakeSnapshot(CommandHandler):
    """Copy the changes of a volume since its last snapshot, while participating programs are paused."""

    kind, queue = TAKE, DATA
    # Each try pauses the volume's programs, and fills what is left of a full disk.
    backoff_seconds = (1, 2, 5, 10, 30, 120)

    def run(self, run: CommandRun) -> tuple[Taken, str] | None:
        snapshot = (
            Snapshot.objects.select_related("volume__project__cluster", "project__cluster")
            .filter(pk=run.command.subject_id)
            .first()
        )
        if snapshot is None:
            return None
        if snapshot.volume is None:
            raise CommandRefused("volume_gone", "The volume was deleted before the snapshot was taken.")
        with refusals():
            storage = storage_of_snapshot(snapshot)
            try:
                return self._take(snapshot, storage, run)
            finally:
                if not Snapshot.objects.filter(pk=snapshot.pk).exclude(state=DELETING).exists():
                    # The removal command may have run before the files existed.
                    storage.remove_snapshot(str(snapshot.pk))

    def on_done(self, command: Command, result: tuple[Taken, str] | None) -> None:
        if result is not None:
            snapshot_ready(command.subject_id, *result)

    def may_retry(self, command: Command, refusal: CommandRefused) -> bool:
        is_young = timezone.now() < command.created_at + FULL_DISK_WITHIN
        waits = refusal.code == NOT_MOUNTED or (refusal.code == DISK_FULL and is_young)
        return waits or super().may_retry(command, refusal)

    def on_retry(self, command: Command, refusal: CommandRefused) -> None:
        snapshot_waits(command.subject_id, refusal.code, refusal.message)

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        words = refusal.message
        if refusal.code == NOT_PERMITTED:
            # The moment that it was to keep is over, so that nothing takes it when the right is granted.
            words += " This snapshot is not tried again: when that is granted, take another."
        snapshot_failed(command.subject_id, refusal.code, words)

    def _take(self, snapshot: Snapshot, storage: VolumeStorage, run: CommandRun) -> tuple[Taken, str]:
        assert snapshot.volume is not None
        key, volume, total = str(snapshot.pk), str(snapshot.volume_id), snapshot.volume.used_bytes

        def report(files: int, size_bytes: int) -> None:
            run.report(size_bytes, total, f"{files} files")

        writers = writing_jobs(snapshot.volume)
        is_claim = claims_volumes(snapshot.project)
        # An earlier try may have ended before it asked the cluster: then the programs are paused as for a first one.
        is_asked_again = run.is_repeated and is_claim and storage.has_snapshot(key)
        if not writers or is_asked_again:
            taken = storage.take(key, volume, _before(snapshot), budget_of(run), report)
            # A job that started meanwhile has written into the files during the copy. What an earlier try asked the
            # cluster for may have been cut while programs wrote, unless that try saw it.
            is_written = writers or writing_jobs(snapshot.volume)
            seen = snapshot.consistency if is_asked_again else ""
            return _with_later_writers(taken, snapshot), seen or (CRASH if is_written else IDLE)
        with _paused(snapshot.volume, storage, key, writers, run) as pause:
            settle = _Settling(snapshot, pause, writers, run)
            if is_claim:
                # Kept for a later try if this one does not see the content, also if the programs have ended by then.
                snapshot_cut(key, CRASH)
            budget = budget_of(run, give_way=settle.give_way)
            taken = storage.take(key, volume, _before(snapshot), budget, report, settle)
            consistency = settle()
        return _with_later_writers(taken, snapshot), consistency


class _Settling:
    """Finds the consistency of a snapshot when its content is there, and then lets the programs continue that `pause`
    stopped. Its later calls return what the first one found."""

    def __init__(
        self, snapshot: Snapshot, pause: Pause | PodPause, writers: list[str], run: CommandRun
    ) -> None:
        self._snapshot, self._pause, self._writers, self._run = snapshot, pause, writers, run
        self._consistency, self._until = "", time.monotonic() + LONGEST_PAUSE_SECONDS

    def __call__(self) -> str:
        assert self._snapshot.volume is not None
        if not self._consistency:
            is_quiet = self._pause.has_lasted() and writing_jobs(self._snapshot.volume) == self._writers
            self._consistency = QUIESCED if is_quiet else CRASH
            # Kept for a try that goes on after this one was killed.
            snapshot_cut(str(self._snapshot.pk), self._consistency)
        return self._consistency

    def give_way(self) -> None:
        """Do what CommandRun.give_way does, but not while programs are paused: the end of the try would end the pause,
        and the snapshot would be crash-consistent."""
        is_paused = self._pause and not self._consistency and time.monotonic() < self._until
        if not is_paused:
            self._run.give_way()


@register
class RemoveSnapshot(Removal):
    """Remove the files of a deleted snapshot, then its row."""

    kind = REMOVE

    def run(self, run: CommandRun) -> Any:
        rows = Snapshot.objects.select_related("project__cluster")
        snapshot = rows.filter(pk=run.command.subject_id).first()
        if snapshot is not None:
            with refusals():
                storage_of_snapshot(snapshot).remove_snapshot(str(snapshot.pk))

    def on_retry(self, command: Command, refusal: CommandRefused) -> None:
        if refusal.code != NOT_DELETED or command.tries > UNSHOWN_TRIES:
            snapshot_not_removed(command.subject_id, refusal.code, refusal.message)

    def on_done(self, command: Command, result: Any) -> None:
        snapshot_gone(command.subject_id)


def _with_later_writers(taken: Taken, snapshot: Snapshot) -> Taken:
    """Return `taken` with a note of the jobs that began to write to the volume after the event for which the snapshot
    is taken, as while the disk was full: its content is also theirs."""
    names = later_writers(snapshot) if snapshot.mark else []
    if not names:
        return taken
    note = f"{', '.join(names)} began to write to {snapshot.volume_name} before this was taken."
    return replace(taken, notes=f"{taken.notes}. {note}" if taken.notes else note)


@contextmanager
def _paused(
    volume: Volume, storage: VolumeStorage, key: str, writers: list[str], run: CommandRun
) -> Iterator[Pause | PodPause]:
    """Context manager that pauses the jobs `writers` (ids), which write to the volume; `key` identifies the
    snapshot. Its block begins once they have paused, or after the time limit. Call `has_lasted` of the yielded
    value after the copy: it is False if not all paused."""
    if isinstance(storage, VolumeFiles):
        with quiesced(storage.path(str(volume.pk)), key, writers, pods=writing_pods(volume)) as pause:
            yield pause
    elif claims_volumes(volume.project):
        with quiesced_by_pod(volume, key, writers, budget_of(run)) as pod_pause:
            yield pod_pause
    else:
        # Without access to the volume's files, it is not known whether programs paused.
        yield Pause()


def _before(snapshot: Snapshot) -> str | None:
    """Return the id of the newest ready snapshot of the same volume, with which files can be shared; None if there
    is none."""
    earlier = Snapshot.objects.filter(volume=snapshot.volume_id, state=READY)
    key = earlier.order_by("-number").values_list("pk", flat=True).first()
    return str(key) if key else None
