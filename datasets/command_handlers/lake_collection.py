"""Command handler that removes unused contents from lakes."""

from contextlib import suppress
from functools import partial

from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from datasets.actions.lake_collection import COLLECT_LAKE, collect_lake
from datasets.long_work import DATA, is_cancelled, refusals
from datasets.storage.base import DeadlineExceeded


@register
class CollectLake(CommandHandler):
    """Remove from one lake the contents older than GRACE that no version and no artifact uses; the whole lake if its
    project was deleted. A run that reaches its time limit succeeds."""

    kind, queue = COLLECT_LAKE, DATA

    def run(self, run: CommandRun) -> None:
        # The next collection continues where this one ends.
        with refusals(), suppress(DeadlineExceeded):
            collect_lake(run.command.subject_id, partial(is_cancelled, run))
