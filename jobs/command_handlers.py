"""Command handlers that make the engine start, stop and forget pods: short calls on the loop's own
threads."""

import shutil
from datetime import timedelta
from types import TracebackType

from django.conf import settings
from django.utils import timezone

from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import ENGINE_STARTS, ENGINE_STOPS, CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.engines.base import CLUSTER_FAILED, DISRUPTIONS, NOT_PERMITTED
from controlplane.fields import LONGEST_MESSAGE
from controlplane.loop.delegated import refuse_offer
from controlplane.loop.engine_pool import engine_for
from controlplane.loop.podspecs import pod_spec
from controlplane.models import Command
from jobs.command_kinds import FORGET_JOB, FORGET_POD, START_POD, STOP_POD
from jobs.models import Pod

# How long a start that the cluster rejects temporarily is retried before the job is queued again.
STARTING_SECONDS = 300


@register
class StartPod(CommandHandler):
    """Start one pod of an attempt, or offer it to the cluster's own scheduler (see the glossary: offer)."""

    kind, queue = START_POD, ENGINE_STARTS

    def run(self, run: CommandRun) -> None:
        engine_for(run.cluster).start(pod_spec(run.command.payload))

    def on_retry(self, command: Command, refusal: CommandRefused) -> None:
        waiting = Pod.objects.filter(name=command.subject_id, state="pending")
        waiting.update(reason=refusal.code, message=refusal.message[:LONGEST_MESSAGE])

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        """Write that the pod failed because of `refusal`; it never ran. If the pod was only offered to another
        scheduler, fail its job."""
        refusal = _as_disruption(refusal)
        refused = Pod.objects.filter(name=command.subject_id, released_at=None).update(
            state="failed",
            reason=refusal.code,
            message=refusal.message[:LONGEST_MESSAGE],
            finished_at=timezone.now(),
        )
        if not refused:
            refuse_offer(command, refusal)

    def may_retry(self, command: Command, refusal: CommandRefused) -> bool:
        """Return whether to try again after `refusal`. Rejections that may pass are retried for STARTING_SECONDS,
        since operators may fix their cause."""
        is_young = timezone.now() - command.created_at < timedelta(seconds=STARTING_SECONDS)
        return (refusal.is_passing and is_young) or super().may_retry(command, refusal)


@register
class StopPod(CommandHandler):
    """Stop one pod: SIGTERM, the grace of the payload, SIGKILL."""

    kind, queue, goes_first = STOP_POD, ENGINE_STOPS, True

    def run(self, run: CommandRun) -> None:
        payload = run.command.payload
        engine_for(run.cluster).stop(
            run.command.subject_id, payload["grace_seconds"], payload.get("project", "")
        )


@register
class ForgetPod(CommandHandler):
    """Remove what the engine keeps about a pod that has ended."""

    kind, queue = FORGET_POD, ENGINE_STOPS

    def run(self, run: CommandRun) -> None:
        engine_for(run.cluster).forget(run.command.subject_id)

    def may_retry(self, command: Command, refusal: CommandRefused) -> bool:
        return refusal.is_passing or super().may_retry(command, refusal)


@register
class ForgetJob(CommandHandler):
    """Remove a deleted job's objects and files in its cluster, and its logs."""

    kind, queue, is_cleanup = FORGET_JOB, ENGINE_STOPS, True

    def run(self, run: CommandRun) -> None:
        engine_for(run.cluster).forget_job(run.command.subject_id)
        logs = settings.LOG_DIR / run.command.subject_id
        if logs.exists():
            shutil.rmtree(logs, onerror=_unless_gone)

    def is_final(self, refusal: CommandRefused) -> bool:
        """Return whether to give up after `refusal`. A missing permission is retried until an operator grants it."""
        return super().is_final(refusal) and refusal.code != NOT_PERMITTED


def _as_disruption(refusal: CommandRefused) -> CommandRefused:
    """Return a transient refusal with the code CLUSTER_FAILED, whose jobs are requeued; any other unchanged."""
    if not refusal.is_passing or refusal.code in DISRUPTIONS:
        return refusal
    # The job did not cause the refusal, so it must not count as its failure.
    return CommandRefused(CLUSTER_FAILED, refusal.message)


def _unless_gone(_function: object, _path: str, error: tuple[type, BaseException, TracebackType]) -> None:
    """Error callback of shutil.rmtree: ignore missing files, raise any other error."""
    # Two concurrent commands may remove the same job (see jobs.transitions.remove).
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]
