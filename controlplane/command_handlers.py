"""Handlers of the control plane's own long commands: check a cluster, and remove what a deleted project left in
one."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from controlplane.actions.clusters import candidate, settle_check
from controlplane.clusters.credentials import engine_settings
from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import CLUSTERS, CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.engines import registry
from controlplane.engines.base import NOT_PERMITTED
from controlplane.loop.engine_pool import engine_for
from controlplane.models import Command


@register
class CheckCluster(CommandHandler):
    """Checks that a cluster is usable with its stored settings, overridden by those in the command's payload."""

    kind, queue, has_secrets = Command.CHECK_CLUSTER, CLUSTERS, True

    def run(self, run: CommandRun) -> Sequence[Any]:
        """Return the results of the engine's preflight checks. Opens no engine: the checks decide whether it may be
        opened."""
        settings = engine_settings(candidate(run.cluster, run.command.payload))
        checks: Sequence[Any] = registry.check_cluster(run.cluster.engine, settings)
        return checks

    def on_done(self, command: Command, result: Sequence[Any]) -> None:
        settle_check(command, [asdict(check) for check in result], timezone.now())

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        """Record a failed check with the refusal's message, because the preflight could not run."""
        failed = {"name": "look", "outcome": "failed", "message": refusal.message, "without_it": ""}
        settle_check(command, [failed], timezone.now())


@register
class ForgetProject(CommandHandler):
    """Removes what a deleted project, or one that moved to another cluster, left in its cluster; on Kubernetes its
    namespace with all contents."""

    kind, queue, is_cleanup = Command.FORGET_PROJECT, CLUSTERS, True

    def run(self, run: CommandRun) -> None:
        engine_for(run.cluster).forget_project(run.command.subject_id)

    def is_final(self, refusal: CommandRefused) -> bool:
        """Return whether retrying is pointless. Missing permissions are never final: the removal is retried until an
        operator grants them."""
        return super().is_final(refusal) and refusal.code != NOT_PERMITTED
