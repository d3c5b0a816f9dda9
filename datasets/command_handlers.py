"""Long work for data, on a Celery queue of its own."""

from contextlib import suppress

from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from datasets.actions.lake_collection import COLLECT_LAKE, collect_lake
from datasets.storage.base import Blocked, DeadlineExceeded

DATA = "data"


@register
class CollectLake(CommandHandler):
    """Remove what no version needs from one lake."""

    kind, queue = COLLECT_LAKE, DATA

    def run(self, run: CommandRun) -> None:
        def is_cancelled() -> bool:
            run.raise_if_cancelled()
            return False

        try:
            with suppress(DeadlineExceeded):
                collect_lake(run.command.subject_id, is_cancelled)
        except Blocked as blocked:
            raise CommandRefused(blocked.code, blocked.detail, is_passing=True) from blocked
