"""Handlers that work on the directories of volumes."""

from typing import Any

from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.models import Command
from datasets.actions.volumes import (
    MEASURE,
    PROVISION,
    REMOVE,
    volume_failed,
    volume_gone,
    volume_measured,
    volume_not_measured,
    volume_ready,
)
from datasets.long_work import DATA, budget_of, refusals
from datasets.models import Volume
from datasets.models.volumes import DELETING
from datasets.queries.volumes import VOLUME, storage_of
from datasets.storage.volumes import FolderVolumes, Measured

MEASURED_SECONDS, MEASURED_FILES = 60.0, 1_000_000


class VolumeCommand(CommandHandler):
    """Work on the directory of one volume. Nothing is done for a row that is gone."""

    queue = DATA

    def run(self, run: CommandRun) -> Any:
        volume = Volume.objects.filter(pk=run.command.subject_id).first()
        if volume is None:
            return None
        with refusals():
            return self.work(volume, storage_of(volume.project_id, volume.storage_class), run)

    def work(self, volume: Volume, storage: FolderVolumes, run: CommandRun) -> Any:
        """Do it; raises as datasets.storage.volumes does."""
        raise NotImplementedError


@register
class ProvisionVolume(VolumeCommand):
    """Make a volume's directory: empty, or a copy of its origin."""

    kind = PROVISION

    def work(self, volume: Volume, storage: FolderVolumes, run: CommandRun) -> Measured | None:
        key, origin, budget = str(volume.pk), volume.origin, budget_of(run)

        def report(files: int, size_bytes: int) -> None:
            run.report(size_bytes, origin.get("size_bytes"), f"{files} files")

        if not origin:
            storage.provision(key)
        elif origin["kind"] == VOLUME:
            storage.clone(key, origin["id"], budget, report)
        else:
            storage.restore(key, origin["id"], budget, report)
        if not Volume.objects.filter(pk=volume.pk).exclude(state=DELETING).exists():
            # Its removal may have been carried out before its directory was there.
            storage.remove(key)
            return None
        return storage.measure(key, budget, MEASURED_FILES)

    def on_done(self, command: Command, result: Measured | None) -> None:
        if result is not None:
            volume_ready(command.subject_id, result)

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        volume_failed(command.subject_id, refusal.code, refusal.message)


@register
class RemoveVolume(VolumeCommand):
    """Remove a deleted volume's directory, then its row."""

    kind, is_cleanup = REMOVE, True

    def work(self, volume: Volume, storage: FolderVolumes, run: CommandRun) -> None:
        storage.remove(str(volume.pk))

    def on_done(self, command: Command, result: None) -> None:
        volume_gone(command.subject_id)


@register
class MeasureVolume(VolumeCommand):
    """Measure how much a volume holds."""

    kind, max_tries = MEASURE, 1

    def work(self, volume: Volume, storage: FolderVolumes, run: CommandRun) -> Measured:
        return storage.measure(str(volume.pk), budget_of(run, MEASURED_SECONDS), MEASURED_FILES)

    def on_done(self, command: Command, result: Measured | None) -> None:
        if result is not None:
            volume_measured(command.subject_id, result)

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        volume_not_measured(command.subject_id)
