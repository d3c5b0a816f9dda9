"""Record how a try at a command ended: done, to be retried, or failed.

All writes require the claim's token, so that a process whose claim expired and was taken over changes nothing.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.commands.errors import Cancelled, CommandRefused, GivesWay
from controlplane.commands.registry import CommandHandler, handler_for
from controlplane.engines.base import CLUSTER_FAILED, EngineRefused, EngineUnreachable
from controlplane.models import Cluster, Command
from controlplane.models.prepared import Rows, prepared

logger = logging.getLogger(__name__)

# The length of the column `error`, which PostgreSQL enforces.
LONGEST_ERROR = 500
# The pause of a command that gave way. Commands that only wait thus leave the threads to others for part of the time,
# however many they are.
GIVE_WAY_SECONDS = 5.0
# The key in the payload of when the wait of a command that gave way began, in seconds since the epoch.
WAITS_SINCE = "waits_since"


class TooLate(Exception):
    """The call did not begin soon enough after its claim, so another process may have claimed the command."""


def is_any_unfinished() -> bool:
    """Return whether any command is unfinished. One query, which loops without work ask before all others."""
    return bool(_unfinished())


@prepared
def _unfinished() -> Rows[Command]:
    return Command.objects.unfinished().values_list("pk")[:1]


def claimable() -> Q:
    """Return the filter for pending commands and those whose claim has expired, whatever their `not_before`."""
    expired = Q(state=Command.CLAIMED, claim_expires_at__lte=Now())
    # `finished_at` for the index command_open.
    return Q(finished_at=None) & (Q(state=Command.PENDING) | expired)


def due(seconds: float = 0.0) -> Q:
    """Return the filter for commands that may be claimed now, and might have been `seconds` ago.

    One that is due within this millisecond counts: SQLite's clock has whole milliseconds, so it is behind the
    times that Python writes.
    """
    return claimable() & Q(not_before__lte=Now() + timedelta(milliseconds=1 - 1000 * seconds))


def complete(command: Command, token: str, result: Any) -> bool:
    """End a successful command and let its handler write `result`, in one transaction. Return False and write nothing
    if the claim was lost."""
    with transaction.atomic():
        if not finish([command], token, Command.DONE):
            return False
        handler_for(command.kind).on_done(command, result)
    return True


def finish(commands: Sequence[Command], token: str, state: str, error: str = "") -> int:
    """End claimed commands with this `state` and `error` message, and erase payloads with secrets. Return how many
    were still claimed by `token`; the others stay unchanged."""
    if not commands:
        return 0
    ours = Command.objects.claimed_by(token).filter(pk__in=[command.pk for command in commands])
    # Erased before the state changes, because `ours` matches claimed commands only.
    with_secrets = {command.kind for command in commands if handler_for(command.kind).has_secrets}
    if with_secrets:
        ours.filter(kind__in=with_secrets).update(payload={})
    return ours.update(state=state, error=error[:LONGEST_ERROR], finished_at=timezone.now())


def note_failure(command: Command, token: str, error: BaseException) -> None:
    """Record that a try of `command` raised `error`: schedule a retry after a temporary failure or a fault while tries
    are left, else fail the command. After TooLate and GivesWay it is pending again, without counting the try; after
    Cancelled nothing is written. Raise `error` again if it is KeyboardInterrupt or SystemExit."""
    # The row has its final state already, or belongs to another worker.
    if isinstance(error, Cancelled):
        return
    if isinstance(error, TooLate):
        _give_back(command, token)
        return
    if isinstance(error, GivesWay):
        later = Now() + timedelta(seconds=GIVE_WAY_SECONDS)
        _give_back(command, token, not_before=later, payload={**command.payload, WAITS_SINCE: error.since})
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
    # KeyboardInterrupt or SystemExit: the process ends, and the command is claimed again when its claim
    # expires.
    if not isinstance(error, Exception):
        raise error
    # A fault in our code or the engine's. Such a command must not stop the others, and must not be retried forever.
    logger.error("%s of %s failed", command.kind, command.subject_id, exc_info=error)
    return CommandRefused("engine_error", _storable(f"The engine failed {Command.MOST_TRIES} times: {error}"))


def _storable(text: str) -> str:
    """Return the text with the characters replaced that databases refuse; users' file names may contain them. If the
    message could not be written, the command would stay claimed and be repeated forever."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _note_unreachable(command: Command, token: str, error: EngineUnreachable) -> None:
    """Record that the engine did not answer, and schedule a retry. Tries are limited only while the command's cluster
    is otherwise reachable, because then the fault may be in the command."""
    handler = handler_for(command.kind)
    # Messages of TLS and HTTP libraries have several lines, and an error is shown on one.
    words = " ".join(str(error).split())
    refusal = CommandRefused(CLUSTER_FAILED, _storable(words), is_passing=True)
    # Commands of volumes, snapshots and caches name no cluster: only their rows can show what they wait for.
    is_named, is_reachable = command.cluster_id is not None, False
    if is_named:
        is_reachable = Cluster.objects.filter(pk=command.required_cluster_id, is_reachable=True).exists()
    if is_reachable or not is_named:
        handler.on_retry(command, refusal)
    _try_again(handler, command, token, refusal, is_bounded=is_reachable)


def _give_back(command: Command, token: str, **values: Any) -> None:
    """Return a claimed command to PENDING, without counting the try, and write `values`. Writes nothing if the claim
    was lost."""
    ours = Command.objects.claimed_by(token).filter(pk=command.pk)
    ours.update(state=Command.PENDING, tries=F("tries") - 1, sent_at=None, **values)


def _try_again(
    handler: CommandHandler, command: Command, token: str, refusal: CommandRefused, *, is_bounded: bool = True
) -> None:
    if is_bounded and not handler.may_retry(command, refusal):
        _fail(handler, command, token, refusal)
        return
    pauses = handler.backoff_seconds
    # `tries` includes the try that has just failed, so the first pause follows the first try.
    wait = timedelta(seconds=pauses[min(command.tries, len(pauses)) - 1])
    # `sent_at` is cleared, because the dispatcher sends no command twice within SEND_AGAIN_SECONDS.
    values = {"error": refusal.message[:LONGEST_ERROR], "not_before": Now() + wait, "sent_at": None}
    if command.payload.pop(WAITS_SINCE, None):
        # The next try waits from the beginning.
        values["payload"] = command.payload
    Command.objects.claimed_by(token).filter(pk=command.pk).update(state=Command.PENDING, **values)


def _fail(handler: CommandHandler, command: Command, token: str, refusal: CommandRefused) -> None:
    logger.info("%s of %s refused: %s", command.kind, command.subject_id, refusal.message)
    with transaction.atomic():
        if finish([command], token, Command.FAILED, refusal.message):
            handler.on_failed(command, refusal)
