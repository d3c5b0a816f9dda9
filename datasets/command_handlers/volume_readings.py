"""Command handler that reads files of a volume through a pod of its cluster."""

from typing import Protocol, cast

from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.engines.base import EngineUnreachable
from controlplane.loop.engine_pool import engine_for
from controlplane.models import Command
from datasets.actions.volume_readings import READ_VOLUME, reading_failed, reading_ready
from datasets.long_work import DATA, budget_of, refusals
from datasets.models import VolumeReading
from datasets.queries.volume_files import FILE_BYTES, LISTED_MOST
from datasets.storage.base import Budget, DeadlineExceeded
from datasets.storage.claims import ReadTask
from datasets.storage.volume_files import Child

READ_SECONDS = 150.0
Read = tuple[list[Child], bytes, bool]


class Reader(Protocol):
    """Reads files of a project's claims (implemented by engines.kubernetes.claim_reader)."""

    def read(self, task: ReadTask, budget: Budget) -> Read:
        """Return (entries of a directory, content of a file, whether there is more) of what `task` names. Raises
        ContentMissing if the path does not exist, Blocked if it cannot be read, and what `budget` raises."""


class ReaderEngine(Protocol):
    """Additional methods of engines whose kind has `claims_volumes`."""

    def files_of(self, project: str) -> Reader:
        """Return the reader of a project's volumes."""


@register
class ReadVolume(CommandHandler):
    """Read a directory or file of a volume. An error fails the command without a retry, since the user can retry."""

    kind, queue, max_tries = READ_VOLUME, DATA, 1

    def run(self, run: CommandRun) -> tuple[Read, bool] | None:
        rows = VolumeReading.objects.select_related("volume__project__cluster")
        reading = rows.filter(pk=run.command.subject_id, state=VolumeReading.PENDING).first()
        if reading is None:
            return None
        project = reading.volume.project
        task = ReadTask(
            str(run.command.pk),
            str(reading.volume_id),
            reading.path.encode("utf-8", "surrogateescape"),
            reading.after.encode("utf-8", "surrogateescape"),
            FILE_BYTES if reading.is_file else LISTED_MOST,
            reading.is_file,
        )
        try:
            engine = cast(ReaderEngine, engine_for(project.cluster))
            with refusals():
                return engine.files_of(project.name).read(task, budget_of(run, READ_SECONDS)), reading.is_file
        except DeadlineExceeded as late:
            words = f"The pod that reads it has not ended within {READ_SECONDS:g} s."
            raise CommandRefused("reading_timeout", words) from late
        except EngineUnreachable as error:
            # Reported at once, because a user waits for the answer.
            raise CommandRefused("engine_unreachable", f"The cluster does not answer: {error}") from error

    def on_done(self, command: Command, result: tuple[Read, bool] | None) -> None:
        if result is not None:
            (children, content, has_more), is_file = result
            reading_ready(command.subject_id, children, content if is_file else None, has_more)

    def may_retry(self, command: Command, refusal: CommandRefused) -> bool:
        return False

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        reading_failed(command.subject_id, refusal.code, refusal.message)
