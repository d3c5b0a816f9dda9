"""How a try at a command ends: done, tried again later, or failed. All writes hold the claim's token, so that a claim
that expired and was taken over changes nothing."""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.commands.errors import Cancelled, CommandRefused
from controlplane.commands.registry import CommandHandler, handler_for
from controlplane.engines.base import CLUSTER_FAILED, EngineRefused, EngineUnreachable
from controlplane.models import Cluster, Command

logger = logging.getLogger(__name__)

LONGEST_ERROR = 500


class TooLate(Exception):
    """A call that did not begin while its claim was young: another process may have the command by now."""


def claimable() -> Q:
    """Return the condition for commands that no process holds."""
    return Q(state=Command.PENDING) | Q(state=Command.CLAIMED, claim_expires_at__lte=Now())


def complete(command: Command, token: str, result: Any) -> bool:
    """End a command that succeeded together with what its handler writes. False when the claim was lost."""
    with transaction.atomic():
        if not finish([command], token, Command.DONE):
            return False
        handler_for(command.kind).on_done(command, result)
    return True


def finish(commands: Sequence[Command], token: str, state: str, error: str = "") -> int:
    """End claimed commands and return how many were still ours."""
    if not commands:
        return 0
    ours = Command.objects.filter(
        pk__in=[command.pk for command in commands], claim_token=token, state=Command.CLAIMED
    )
    with_secrets = {command.kind for command in commands if handler_for(command.kind).has_secrets}
    if with_secrets:
        ours.filter(kind__in=with_secrets).update(payload={})
    return ours.update(state=state, error=error[:LONGEST_ERROR], finished_at=timezone.now())


def note_failure(command: Command, token: str, error: BaseException) -> None:
    """Write how a try failed: what may pass is tried again, what is final fails the command."""
    if isinstance(error, Cancelled):
        return
    if isinstance(error, TooLate):
        _give_back(command, token)
        return
    if isinstance(error, EngineUnreachable):
        _note_unreachable(command, token, error)
        return
    handler = handler_for(command.kind)
    refusal = _refusal_of(command, error)
    is_fault = not isinstance(error, CommandRefused | EngineRefused)
    if not is_fault and handler.is_final(refusal):
        _fail(handler, command, token, refusal)
        return
    if not is_fault or refusal.is_passing:
        handler.on_retry(command, refusal)
    _try_again(handler, command, token, refusal)


def _refusal_of(command: Command, error: BaseException) -> CommandRefused:
    if isinstance(error, CommandRefused):
        error.message = _storable(error.message)
        return error
    if isinstance(error, EngineRefused):
        return CommandRefused(error.code, _storable(error.message), is_passing=error.is_passing)
    if not isinstance(error, Exception):
        raise error
    # a fault of ours or of the engine's: such a command must neither stop the others nor be tried for ever
    logger.error("%s of %s failed", command.kind, command.subject_id, exc_info=error)
    return CommandRefused("engine_error", _storable(f"The engine failed {Command.MOST_TRIES} times: {error}"))


def _storable(text: str) -> str:
    """Return text that databases take. A refusal that cannot be written would leave its command claimed, and the same
    try would be repeated for ever; file names of users can hold anything."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _note_unreachable(command: Command, token: str, error: EngineUnreachable) -> None:
    """Whether the engine is out of reach is for reconcile to say, and then tries are not counted; one that answers
    everything but this is broken."""
    handler = handler_for(command.kind)
    refusal = CommandRefused(CLUSTER_FAILED, _storable(str(error)), is_passing=True)
    is_reachable = Cluster.objects.filter(pk=command.required_cluster_id, is_reachable=True).exists()
    if is_reachable:
        handler.on_retry(command, refusal)
    _try_again(handler, command, token, refusal, is_bounded=is_reachable)


def _give_back(command: Command, token: str) -> None:
    """Free a command of which nothing was tried."""
    ours = Command.objects.filter(pk=command.pk, claim_token=token, state=Command.CLAIMED)
    ours.update(state=Command.PENDING, tries=F("tries") - 1, sent_at=None)


def _try_again(
    handler: CommandHandler, command: Command, token: str, refusal: CommandRefused, *, is_bounded: bool = True
) -> None:
    if is_bounded and not handler.may_retry(command, refusal):
        _fail(handler, command, token, refusal)
        return
    pauses = handler.backoff_seconds
    wait = timedelta(seconds=pauses[min(command.tries, len(pauses)) - 1])
    Command.objects.filter(pk=command.pk, claim_token=token, state=Command.CLAIMED).update(
        state=Command.PENDING, error=refusal.message[:LONGEST_ERROR], not_before=Now() + wait, sent_at=None
    )


def _fail(handler: CommandHandler, command: Command, token: str, refusal: CommandRefused) -> None:
    logger.info("%s of %s refused: %s", command.kind, command.subject_id, refusal.message)
    with transaction.atomic():
        if finish([command], token, Command.FAILED, refusal.message):
            handler.on_failed(command, refusal)
