"""Command handlers that work on volumes where they are stored."""

from datetime import timedelta
from typing import Any, cast

from django.utils import timezone

from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.engines.base import NOT_PERMITTED
from controlplane.fields import LONGEST_MESSAGE
from controlplane.models import Command
from datasets.actions.volumes import (
    CHECK,
    MEASURE,
    PROVISION,
    REMOVE,
    RESIZE,
    RETIER,
    volume_changed,
    volume_checked,
    volume_failed,
    volume_gone,
    volume_measured,
    volume_not_measured,
    volume_not_removed,
    volume_ready,
    volume_waits,
)
from datasets.long_work import DATA, Removal, budget_of, refusals
from datasets.models import Volume
from datasets.models.volumes import DELETING
from datasets.queries.volumes import VOLUME
from datasets.storage.base import NOT_MOUNTED, Budget
from datasets.storage.claims import NOT_PROVISIONED
from datasets.storage.volume_files import Measured
from datasets.storage.volumes import VolumeStorage
from datasets.volume_storage import ClaimStorage, storage_of_volume

MEASURED_SECONDS, MEASURED_FILES = 60.0, 1_000_000
# How long a driver of Kubernetes may take for a clone or a restore.
COPIED_WITHIN = timedelta(hours=1)
# Retried without limit, as NOT_MOUNTED: an operator or the storage system ends these conditions in time.
JOB_NOT_DONE = "job_not_done"


class VolumeCommand(CommandHandler):
    """Base class of commands on one volume. Does nothing if the row was deleted."""

    queue = DATA

    def run(self, run: CommandRun) -> Any:
        volume = Volume.objects.select_related("project__cluster").filter(pk=run.command.subject_id).first()
        if volume is None:
            return None
        with refusals():
            return self.work(volume, storage_of_volume(volume), run)

    def work(self, volume: Volume, storage: VolumeStorage, run: CommandRun) -> Any:
        """Carry out the command and return its result for `on_done`. Raises the errors of VolumeStorage."""
        raise NotImplementedError


@register
class ProvisionVolume(VolumeCommand):
    """Create a volume: empty, or a copy of its origin."""

    kind = PROVISION

    def work(self, volume: Volume, storage: VolumeStorage, run: CommandRun) -> tuple[Measured | None] | None:
        key, origin, budget = str(volume.pk), volume.origin, budget_of(run)

        def report(files: int, size_bytes: int) -> None:
            run.report(size_bytes, origin.get("size_bytes"), f"{files} files")

        try:
            if not origin:
                storage.provision(key, budget)
            elif origin["kind"] == VOLUME:
                storage.clone(key, origin["id"], budget, report)
            else:
                storage.restore(key, origin["id"], budget, report)
        finally:
            is_wanted = Volume.objects.filter(pk=volume.pk).exclude(state=DELETING).exists()
            if not is_wanted:
                # The removal command may have run before the directory existed.
                storage.remove(key)
        return (storage.measure(key, budget, MEASURED_FILES),) if is_wanted else None

    def may_retry(self, command: Command, refusal: CommandRefused) -> bool:
        if refusal.code == NOT_PROVISIONED:
            # Only copies come here: the refusal of an empty volume is final.
            return timezone.now() < command.created_at + COPIED_WITHIN
        return refusal.code in (NOT_MOUNTED, JOB_NOT_DONE) or super().may_retry(command, refusal)

    def on_retry(self, command: Command, refusal: CommandRefused) -> None:
        volume_waits(command.subject_id, refusal.code, refusal.message)

    def on_done(self, command: Command, result: tuple[Measured | None] | None) -> None:
        if result is not None:
            volume_ready(command.subject_id, result[0])

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        words = refusal.message
        if refusal.code == NOT_PERMITTED:
            name = Volume.objects.filter(pk=command.subject_id).values_list("name", flat=True).first()
            words += f" It is not tried again: when that is granted, delete {name} and create it again."
        volume_failed(command.subject_id, refusal.code, words)


@register
class RemoveVolume(Removal, VolumeCommand):
    """Remove the content of a deleted volume, then its row."""

    kind = REMOVE

    def work(self, volume: Volume, storage: VolumeStorage, run: CommandRun) -> None:
        storage.remove(str(volume.pk))

    def on_retry(self, command: Command, refusal: CommandRefused) -> None:
        volume_not_removed(command.subject_id, refusal.code, refusal.message)

    def on_done(self, command: Command, result: None) -> None:
        volume_gone(command.subject_id)


class ChangeVolume(VolumeCommand):
    """Base of commands that apply a new value of one column at the storage. `column`: its name, also in the payload;
    `done`, `failed`: kinds of the events."""

    max_tries = 1
    column = done = failed = ""

    def work(self, volume: Volume, storage: VolumeStorage, run: CommandRun) -> Any:
        value = run.command.payload[self.column]
        self.change(storage, str(volume.pk), value, budget_of(run))
        return value

    def change(self, storage: VolumeStorage, key: str, value: Any, budget: Budget) -> None:
        """Apply the value to the volume `key` at its storage. Raises the errors of VolumeStorage."""
        raise NotImplementedError

    def on_done(self, command: Command, result: Any) -> None:
        if result is not None:
            volume_changed(command.subject_id, self.done, **{self.column: result})

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        volume_changed(command.subject_id, self.failed, message=refusal.message[:LONGEST_MESSAGE])


@register
class ResizeVolume(ChangeVolume):
    """Apply a volume's new size at its storage."""

    kind, column, done, failed = RESIZE, "size_bytes", "volume.resized", "volume.not_resized"

    def change(self, storage: VolumeStorage, key: str, value: int, budget: Budget) -> None:
        storage.resize(key, value, budget)


@register
class RetierVolume(ChangeVolume):
    """Apply a volume's new service tier at its storage."""

    kind, column, done, failed = RETIER, "service_tier", "volume.tier_changed", "volume.tier_not_changed"

    def change(self, storage: VolumeStorage, key: str, value: str, budget: Budget) -> None:
        storage.retier(key, value, budget)

    def may_retry(self, command: Command, refusal: CommandRefused) -> bool:
        return refusal.code == JOB_NOT_DONE or super().may_retry(command, refusal)


@register
class MeasureVolume(VolumeCommand):
    """Measure how many files and bytes a volume holds."""

    kind, max_tries = MEASURE, 1

    def work(self, volume: Volume, storage: VolumeStorage, run: CommandRun) -> Measured | None:
        return storage.measure(str(volume.pk), budget_of(run, MEASURED_SECONDS), MEASURED_FILES)

    def on_done(self, command: Command, result: Measured | None) -> None:
        if result is not None:
            volume_measured(command.subject_id, result)

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        volume_not_measured(command.subject_id)


@register
class CheckVolume(VolumeCommand):
    """Check a volume's claim in the cluster after the engine's watch reported it deleted, lost or back."""

    kind, max_tries = CHECK, 1

    def work(self, volume: Volume, storage: VolumeStorage, run: CommandRun) -> str:
        return cast(ClaimStorage, storage).trouble(str(volume.pk))

    def on_done(self, command: Command, result: str | None) -> None:
        if result is not None:
            volume_checked(command.subject_id, result)
