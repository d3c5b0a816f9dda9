"""Long work for data, on a Celery queue of its own. Other modules of the app declare theirs by being imported here."""

from contextlib import suppress
from functools import partial

from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from datasets import (
    artifact_commands,
    cache_commands,
    code_commands,
    registration_commands,
    snapshot_commands,
    volume_commands,
    volume_reading_commands,
)
from datasets.actions.lake_collection import COLLECT_LAKE, collect_lake
from datasets.long_work import DATA, is_cancelled, refusals
from datasets.storage.base import DeadlineExceeded

DECLARED = (
    artifact_commands,
    code_commands,
    volume_commands,
    volume_reading_commands,
    snapshot_commands,
    cache_commands,
    registration_commands,
)


@register
class CollectLake(CommandHandler):
    """Remove what no version needs from one lake."""

    kind, queue = COLLECT_LAKE, DATA

    def run(self, run: CommandRun) -> None:
        with refusals(), suppress(DeadlineExceeded):
            collect_lake(run.command.subject_id, partial(is_cancelled, run))
