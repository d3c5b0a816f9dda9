"""Long commands as Celery tasks: a task carries only a command's id; everything else is in the row.

A worker claims the row by conditional UPDATE and renews the claim while it works. So a task that is delivered
twice runs once, and a command whose worker was killed is sent again (controlplane.commands.dispatch).
"""

from datetime import timedelta

from django.db.models import F
from django.db.models.functions import Now

from controlplane.celery_app import app
from controlplane.commands.errors import Cancelled
from controlplane.commands.outcomes import complete, due, note_failure
from controlplane.commands.registry import handler_for
from controlplane.commands.run import CLAIM_SECONDS, CommandRun
from controlplane.loop.claim_tokens import new_token
from controlplane.models import Command


# Acknowledged on receipt, because the claim in the row, not Redis, reveals a dead worker.
@app.task(acks_late=False, ignore_result=True)
def carry_out(command_id: int) -> None:
    """Execute the command with this id, unless it has ended, is not due, or another worker has claimed it."""
    carry_out_here(command_id)


def carry_out_here(command_id: int) -> bool:
    """Execute a long command in this thread; call it outside transactions. Return False if it could not be claimed,
    True however it ended: failures are recorded on the command."""
    token = new_token()
    command = _claim(command_id, token)
    if command is None:
        return False
    try:
        with CommandRun(command, token) as run:
            result = handler_for(command.kind).run(run)
        complete(command, token, result)
    except Cancelled:
        # The row has its final state already, or belongs to another worker.
        pass
    except Exception as error:  # noqa: BLE001  note_failure logs what is not expected
        note_failure(command, token, error)
    return True


def _claim(command_id: int, token: str) -> Command | None:
    waiting = Command.objects.filter(due(), pk=command_id)
    claimed = waiting.update(
        state=Command.CLAIMED,
        claim_token=token,
        claim_expires_at=Now() + timedelta(seconds=CLAIM_SECONDS),
        tries=F("tries") + 1,
        progress={},
    )
    return Command.objects.filter(pk=command_id).first() if claimed else None
