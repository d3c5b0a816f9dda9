"""Command handler that imports code from git."""

from typing import Any

from controlplane.actions.errors import Invalid
from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.models import Command
from datasets.actions.code_imports import IMPORT_CODE, Imported, fail_import, fetch_code, finish_import
from datasets.code_manifest import TreeRefused
from datasets.git_source import GitRefused
from datasets.long_work import DATA
from datasets.models import CodeImport


@register
class ImportCode(CommandHandler):
    """Fetch a commit of a git repository and store it as code of a project."""

    kind, queue = IMPORT_CODE, DATA
    # Few retries, because a user waits for the result.
    max_tries, backoff_seconds = 2, (2,)

    def run(self, run: CommandRun) -> Imported:
        row = CodeImport.objects.select_related("project", "created_by").get(pk=run.command.subject_id)
        try:
            return fetch_code(row, run.raise_if_cancelled)
        except (GitRefused, TreeRefused) as refused:
            raise CommandRefused(refused.code, refused.detail) from refused
        except Invalid as refused:
            error = refused.errors[0]
            raise CommandRefused(error.code, error.detail) from refused

    def on_done(self, command: Command, result: Any) -> None:
        finish_import(command.subject_id, result)

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        fail_import(command.subject_id, refusal.code, refusal.message)
