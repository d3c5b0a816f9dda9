"""EXECUTE: claim commands and call the engine, outside any transaction. Each may be repeated after a crash."""

import logging
import shutil
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.engines.base import Engine, EngineRefused, EngineUnreachable
from controlplane.loop.attached import engine_for
from controlplane.loop.holders import new_token
from controlplane.loop.podspecs import pod_spec
from controlplane.models import Cluster, Command
from jobs.models import Pod

logger = logging.getLogger(__name__)

CLAIM_SECONDS = 30
BACKOFF_SECONDS = (1, 2, 5, 10, 30)
MOST_TRIES = 5


def execute_due(limit: int = 20) -> int:
    """Carry out up to `limit` due commands, oldest first, and return how many this process got hold of."""
    done = 0
    for command in _due(limit):
        token = _claim(command)
        if token is not None:
            _carry_out(command, token)
            done += 1
    return done


def _due(limit: int) -> list[Command]:
    return list(
        Command.objects.filter(_claimable(), not_before__lte=Now())
        .select_related("cluster")
        .order_by("pk")[:limit]
    )


def _claim(command: Command) -> str | None:
    token = new_token()
    claimed = Command.objects.filter(_claimable(), pk=command.pk).update(
        state=Command.CLAIMED,
        claim_token=token,
        claim_expires_at=Now() + timedelta(seconds=CLAIM_SECONDS),
        tries=command.tries + 1,
    )
    return token if claimed == 1 else None


def _claimable() -> Q:
    return Q(state=Command.PENDING) | Q(state=Command.CLAIMED, claim_expires_at__lte=Now())


def _carry_out(command: Command, token: str) -> None:
    try:
        _EFFECTS[command.kind](engine_for(command.cluster), command)
    except EngineUnreachable as error:
        # whether the engine is out of reach is for reconcile to say; one that answers everything but this is broken
        is_reachable = Cluster.objects.filter(pk=command.cluster_id, is_reachable=True).exists()
        _try_again(command, token, error, is_bounded=is_reachable)
    except EngineRefused as refusal:
        _give_up(command, token, refusal)
    except Exception as error:
        # a fault of ours or of the engine's: a poison command must neither stop the others nor be tried for ever
        logger.exception("%s of %s failed", command.kind, command.pod_name)
        _try_again(command, token, error, is_bounded=True)
    else:
        _finish(command, token, Command.DONE, "")


def _start(engine: Engine, command: Command) -> None:
    engine.start(pod_spec(command.payload))


def _stop(engine: Engine, command: Command) -> None:
    engine.stop(command.pod_name, command.payload["grace_seconds"])


def _forget(engine: Engine, command: Command) -> None:
    engine.forget(command.pod_name)


def _forget_job(engine: Engine, command: Command) -> None:
    engine.forget_job(command.pod_name)
    logs = settings.LOG_DIR / command.pod_name
    if logs.exists():
        shutil.rmtree(logs)


_EFFECTS = {
    Command.START_POD: _start,
    Command.STOP_POD: _stop,
    Command.FORGET_POD: _forget,
    Command.FORGET_JOB: _forget_job,
}


def _finish(command: Command, token: str, state: str, error: str) -> bool:
    """Write the end under the claim's token: a claim that expired and was taken over leaves no trace."""
    ours = Command.objects.filter(pk=command.pk, claim_token=token, state=Command.CLAIMED)
    return ours.update(state=state, error=error[:500], finished_at=timezone.now()) == 1


def _try_again(command: Command, token: str, error: Exception, *, is_bounded: bool) -> None:
    if is_bounded and command.tries + 1 >= MOST_TRIES:
        _give_up(
            command, token, EngineRefused("engine_error", f"The engine failed {MOST_TRIES} times: {error}")
        )
        return
    wait = BACKOFF_SECONDS[min(command.tries, len(BACKOFF_SECONDS) - 1)]
    Command.objects.filter(pk=command.pk, claim_token=token, state=Command.CLAIMED).update(
        state=Command.PENDING, error=str(error)[:500], not_before=Now() + timedelta(seconds=wait)
    )


def _give_up(command: Command, token: str, refusal: EngineRefused) -> None:
    """A refused start fails its pod, which never ran; other refusals mean that there is nothing left to do."""
    logger.info("%s of %s refused: %s", command.kind, command.pod_name, refusal.message)
    with transaction.atomic():
        if _finish(command, token, Command.FAILED, refusal.message) and command.kind == Command.START_POD:
            Pod.objects.filter(name=command.pod_name, released_at=None).update(
                state="failed", reason=refusal.code, message=refusal.message[:500], finished_at=timezone.now()
            )
