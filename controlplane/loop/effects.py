"""What each kind of command does outside the database, and what its end writes. Each may be repeated after a crash."""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

from django.conf import settings
from django.utils import timezone

from controlplane.actions.clusters import candidate, settle_check
from controlplane.clusters.credentials import engine_settings
from controlplane.engines import registry
from controlplane.engines.base import EngineRefused
from controlplane.loop.delegated import refuse_offer
from controlplane.loop.engine_pool import engine_for
from controlplane.loop.podspecs import pod_spec
from controlplane.models import Cluster, Command
from jobs.models import Pod

logger = logging.getLogger(__name__)

LONGEST_MESSAGE = 500


def carry_out(cluster: Cluster, command: Command) -> Any:
    """Do what the command says and return what its end needs. Reads and writes no row: many run at a time."""
    return _EFFECTS[command.kind](cluster, command)


def note_done(cluster: Cluster, command: Command, result: Any) -> None:
    """Write what a command found out."""
    if command.kind == Command.CHECK_CLUSTER:
        settle_check(command, [asdict(check) for check in result], timezone.now())


def note_waiting(command: Command, refusal: EngineRefused) -> None:
    """A start that is tried again tells its pod why."""
    if command.kind == Command.START_POD:
        waiting = Pod.objects.filter(name=command.pod_name, state="pending")
        waiting.update(reason=refusal.code, message=refusal.message[:LONGEST_MESSAGE])


def note_given_up(cluster: Cluster, command: Command, refusal: EngineRefused) -> None:
    """A refused start fails its pod, which never ran, and a look that was never had refuses its cluster; other
    refusals mean that there is nothing left to do."""
    if command.kind == Command.START_POD:
        refused = Pod.objects.filter(name=command.pod_name, released_at=None).update(
            state="failed",
            reason=refusal.code,
            message=refusal.message[:LONGEST_MESSAGE],
            finished_at=timezone.now(),
        )
        if not refused:
            refuse_offer(command, refusal)
    elif command.kind == Command.CHECK_CLUSTER:
        failed = {"name": "look", "outcome": "failed", "message": refusal.message, "without_it": ""}
        settle_check(command, [failed], timezone.now())


def _start(cluster: Cluster, command: Command) -> None:
    engine_for(cluster).start(pod_spec(command.payload))


def _stop(cluster: Cluster, command: Command) -> None:
    payload = command.payload
    engine_for(cluster).stop(command.pod_name, payload["grace_seconds"], payload.get("project", ""))


def _forget(cluster: Cluster, command: Command) -> None:
    engine_for(cluster).forget(command.pod_name)


def _forget_job(cluster: Cluster, command: Command) -> None:
    engine_for(cluster).forget_job(command.pod_name)
    logs = settings.LOG_DIR / command.pod_name
    if logs.exists():
        shutil.rmtree(logs, onerror=_unless_gone)


def _unless_gone(_function: object, _path: str, error: tuple[type, BaseException, TracebackType]) -> None:
    """A job is forgotten twice (jobs.transitions.remove): the other order may be at the same files."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def _forget_project(cluster: Cluster, command: Command) -> None:
    engine_for(cluster).forget_project(command.pod_name)


def _look(cluster: Cluster, command: Command) -> Sequence[Any]:
    """The engine is not opened: whether it may be is what the look finds out."""
    checks: Sequence[Any] = registry.check_cluster(
        cluster.engine, engine_settings(candidate(cluster, command.payload))
    )
    return checks


_EFFECTS: dict[str, Callable[[Cluster, Command], Any]] = {
    Command.START_POD: _start,
    Command.STOP_POD: _stop,
    Command.FORGET_POD: _forget,
    Command.FORGET_JOB: _forget_job,
    Command.FORGET_PROJECT: _forget_project,
    Command.CHECK_CLUSTER: _look,
}
