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
    """Checks that a cluster can be used, with its stored settings or those in the payload."""

    kind, queue, has_secrets = Command.CHECK_CLUSTER, CLUSTERS, True

    def run(self, run: CommandRun) -> Sequence[Any]:
        """Run the preflight. The cluster's engine is not opened: the check decides whether it may be."""
        settings = engine_settings(candidate(run.cluster, run.command.payload))
        checks: Sequence[Any] = registry.check_cluster(run.cluster.engine, settings)
        return checks

    def on_done(self, command: Command, result: Sequence[Any]) -> None:
        settle_check(command, [asdict(check) for check in result], timezone.now())

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        """Record the check as failed if it could not be carried out."""
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
        """Return False for missing rights, so that the removal is retried until an operator grants them; else as for
        every command."""
        return super().is_final(refusal) and refusal.code != NOT_PERMITTED
