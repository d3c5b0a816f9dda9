"""RECONCILE: compare the engine's report with the rows, and move rows by the lifecycle table.

A GPU is released only when its pod is proven gone. Reports are observed states, not messages, so the next
report makes up for a lost one.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.engines.base import POD_LOST, STOPPED, Engine, EngineUnreachable, PodReport
from controlplane.engines.base import STARTING as POD_STARTING
from controlplane.fields import LONGEST_MESSAGE
from controlplane.loop.cluster_context import context_of
from controlplane.loop.delegated import open_offers
from controlplane.loop.external_preemptions import send_back
from controlplane.loop.job_transitions import settle_jobs
from controlplane.loop.pod_diff import OPEN
from controlplane.loop.pod_lookup import PodLookup
from controlplane.models import Cluster, Command, Event, Node
from controlplane.models.bulk_insert import insert_rows
from controlplane.models.bulk_update import Change, change_rows, one_by_one
from jobs.command_kinds import FORGET_POD, POD, START_POD, STOP_POD
from jobs.models import Job, Pod
from jobs.release import release
from jobs.transitions import LATE_START_SECONDS

logger = logging.getLogger(__name__)

# A stop may not have reached its pod, for example because the node was unreachable.
STOP_AGAIN_SECONDS = 30
# The longest pod name that a command can hold as its subject.
LONGEST_NAME = 128
# Pods written in one transaction; kept small, because other writers wait for it.
BATCH = 200
# The engine's report may be some seconds old, so a started pod that is absent from it counts as lost only
# after this time.
LOST_AFTER_SECONDS = 5
# Stands for the state of a start command that no longer exists: finished commands are deleted after a while.
_CLEARED = ""


def reconcile(cluster: Cluster, engine: Engine, now: datetime) -> frozenset[str]:
    """Update rows of pods and jobs from the engine's report. If the engine is unreachable, only that is stored.

    Return the nodes that run pods without a row, for example after a node that was declared dead comes back. They get
    no new pods until those have ended.
    """
    try:
        reports = {report.name: report for report in engine.pods()}
    except EngineUnreachable as error:
        note_reachable(cluster, False, str(error))
        return frozenset()
    note_reachable(cluster, True, "")
    context = context_of(cluster)
    held, compared = context.pods.read(cluster), context.diffs
    send_back(reports, held)
    keys = compared.differing(cluster, held, reports)
    pods = list(Pod.objects.filter(pk__in=keys).order_by("pk")) if keys else []
    states = {pod.pk: pod.state for pod in pods}
    looks = PodLookup(engine, _overdue([pod for pod in pods if pod.name not in reports], now))
    changed = [pod for pod in pods if _compare(pod, reports.get(pod.name), looks, now)]
    compared.note(set(pods).difference(changed), reports)
    for first in range(0, len(changed), BATCH):
        one_by_one(changed[first : first + BATCH], lambda batch: _write(batch, states, now))
    orphans = [report for name, report in reports.items() if name not in held]
    staying = _clear_away(cluster, orphans, now) if orphans else set()
    settle_jobs(cluster, now)
    return _nodes_with_orphans(orphans, staying)


def note_reachable(cluster: Cluster, is_reachable: bool, message: str) -> None:
    """Store whether the engine is reachable, and why not (`message`), in the row and in `cluster`; with an event. When
    the cluster is lost, its ready nodes count as seen until now. Writes only a change."""
    if cluster.is_reachable == is_reachable:
        return
    with transaction.atomic():
        changed = Cluster.objects.filter(pk=cluster.pk, is_reachable=not is_reachable)
        if changed.update(is_reachable=is_reachable, unreachable_message=message[:LONGEST_MESSAGE]) == 1:
            kind = "cluster.reached" if is_reachable else "cluster.lost"
            # Until now the cluster answered, so its ready nodes were seen just before.
            if not is_reachable:
                Node.objects.filter(cluster=cluster, is_ready=True).update(seen_at=timezone.now())
            Event.objects.append([Event(kind=kind, message=message[:LONGEST_MESSAGE] or cluster.name)])
    cluster.is_reachable = is_reachable


def _compare(pod: Pod, report: PodReport | None, looks: PodLookup, now: datetime) -> bool:
    """Update `pod` from its report, without saving it. Return whether it may have changed. Without a report the
    engine is asked for the pod by name: a confirmed absence is recorded, no answer changes nothing."""
    if report is None:
        # Absence frees GPUs, so a lookup by name must confirm it.
        if not looks.is_certain(pod):
            return False
        report = looks.found
        if report is None:
            _note_lost(pod, now)
            return True
    if pod.state == "failed" and not report.is_proven_gone:
        # Its start was abandoned, or it failed with processes left: it stays failed until it is proven gone.
        return False
    before = (pod.state, pod.reason, pod.message, pod.exit_code, pod.ports, pod.released_at)
    if pod.state != "failed":
        pod.state, pod.reason, pod.message = report.state, report.reason, report.message[:LONGEST_MESSAGE]
        pod.exit_code = report.exit_code
    pod.started_at, pod.finished_at = (
        report.started_at or pod.started_at,
        report.finished_at or pod.finished_at,
    )
    pod.ports = {str(port): list(address) for port, address in report.ports.items()}
    if report.is_proven_gone:
        pod.released_at = now
    return before != (pod.state, pod.reason, pod.message, pod.exit_code, pod.ports, pod.released_at)


def _overdue(missing: Sequence[Pod], now: datetime) -> frozenset[str]:
    """Return the names of the pods whose absence from the report would be final: they should exist by now, or their
    start was given up."""
    if not missing:
        return frozenset()
    starts = Command.objects.filter(subject_id__in=[pod.name for pod in missing], kind=START_POD)
    rows = starts.order_by("pk").values_list("subject_id", "state", "tries", "finished_at")
    last = {name: (state, tries, at) for name, state, tries, at in rows}
    return frozenset(
        pod.name
        for pod in missing
        if _is_overdue(pod, *last.get(pod.name, (_CLEARED, 0, pod.created_at)), now)
    )


def _is_overdue(pod: Pod, start: str, tries: int, finished_at: datetime | None, now: datetime) -> bool:
    """Return whether a pod's absence is final. `start`, `tries`, `finished_at`: state, number of tries and end of its
    last start command.

    If its start was tried several times, an early request may still be on its way. Then the absence is final once a
    stop has claimed the pod's name, or once no request can be that late.
    """
    is_failed = pod.state == "failed"
    if is_failed and tries <= 1:
        return True
    if finished_at is None or not (is_failed or start in (Command.DONE, _CLEARED)):
        return False
    wait = LOST_AFTER_SECONDS if start == Command.DONE else LATE_START_SECONDS
    return now - finished_at >= timedelta(seconds=wait)


def _note_lost(pod: Pod, now: datetime) -> None:
    """Mark a pod as released and, unless it had failed already, as failed: the engine has confirmed that it is gone.
    Does not save it."""
    if pod.state != "failed":
        pod.state, pod.reason, pod.finished_at = "failed", POD_LOST, now
        pod.message = "The engine no longer knows this pod."
    pod.released_at = now


def _write(pods: Sequence[Pod], states: Mapping[int, str], now: datetime) -> None:
    """Save pods that were compared, in one transaction with their events. Each is guarded by its state as read
    (`states`, by primary key), so that a process that was paused overwrites nothing newer."""
    jobs = Job.objects.filter(pk__in={pod.job_id for pod in pods})
    projects = dict(jobs.values_list("pk", "project_id"))
    nodes = dict(Node.objects.filter(pk__in={pod.node_id for pod in pods}).values_list("pk", "name"))
    with transaction.atomic():
        saved = change_rows(Pod, [_change(pod, states[pod.pk]) for pod in pods])
        written = [pod for pod in pods if pod.pk in saved]
        released = [pod for pod in written if pod.released_at is not None]
        if released:
            release(released, now, "The pod was gone already.")
        Event.objects.append([_pod_event(pod, projects[pod.job_id], nodes[pod.node_id]) for pod in written])


def _change(pod: Pod, state: str) -> Change:
    columns = (
        "state", "reason", "message", "exit_code", "started_at", "finished_at", "ports", "released_at",
    )  # fmt: skip
    return Change(
        pod.pk, {"state": state, "released_at": None}, {name: getattr(pod, name) for name in columns}
    )


def _pod_event(pod: Pod, project_id: int, node: str) -> Event:
    kind = "pod.released" if pod.released_at else f"pod.{pod.state}"
    return Event(
        kind=kind,
        job_id=pod.job_id,
        project_id=project_id,
        node_id=pod.node_id,
        reason=pod.reason,
        message=pod.message or f"Rank {pod.rank} is {pod.state} on {node}.",
        data={"rank": pod.rank, "exit_code": pod.exit_code},
    )


def _clear_away(cluster: Cluster, orphans: list[PodReport], now: datetime) -> set[str]:
    """Queue commands that end pods without a row (`orphans`): forget those that are gone, and stop those that run,
    again and again, because a node may have been unreachable. Return the names of those that may stay: their row has
    just been written, or they belong to a valid offer."""
    names = [report.name for report in orphans]
    orders = Command.objects.filter(subject_id__in=names, kind__in=(STOP_POD, FORGET_POD))
    is_open = Q(state__in=OPEN)
    is_recent = Q(finished_at__gt=now - timedelta(seconds=STOP_AGAIN_SECONDS))
    is_tried = is_recent & (Q(kind=STOP_POD) | Q(state=Command.FAILED))
    rows = orders.filter(is_open | is_tried).values_list("subject_id", "state")
    # If a pod has several commands, use one that is not finished.
    command_states = dict(sorted(rows, key=lambda row: row[1] in OPEN))
    staying = _starting(names) | open_offers(cluster, orphans)
    awaited = _awaited(orphans)
    insert_rows(
        _end_order(cluster, report, LATE_START_SECONDS if report.name in awaited else 0)
        for report in orphans
        # A longer name cannot be one of ours.
        if len(report.name) <= LONGEST_NAME
        and report.name not in staying
        and not _is_pending(command_states.get(report.name), report)
    )
    return staying


def _is_pending(state: str | None, report: PodReport) -> bool:
    """Return whether a command for the orphan is unfinished, or was executed so recently that the pod may still be
    ending. `state`: of its last command, None without one."""
    return state is not None and (state != Command.DONE or not report.is_proven_gone)


def _nodes_with_orphans(orphans: list[PodReport], staying: set[str]) -> frozenset[str]:
    """Return the nodes of the orphans that must end: the node in the pod's row, else the reported one."""
    left = {
        report.name: report.node
        for report in orphans
        if report.name not in staying and not report.is_proven_gone
    }
    if not left:
        return frozenset()
    rows = dict(Pod.objects.filter(name__in=left).values_list("name", "node__name"))
    return frozenset(node for node in (left | rows).values() if node)


def _starting(names: list[str]) -> set[str]:
    """Return the names of the pods that have an unreleased row now: it was written after this cycle read the rows, so
    they are no orphans."""
    return set(Pod.objects.filter(name__in=names, released_at=None).values_list("name", flat=True))


def _awaited(orphans: list[PodReport]) -> set[str]:
    """Return the names of the pods with a row that were stopped before they began. (Withdrawn offers have no rows.)"""
    names = [report.name for report in orphans if report.reason == STOPPED and report.started_at is None]
    return set(Pod.objects.filter(name__in=names).values_list("name", flat=True)) if names else set()


def _end_order(cluster: Cluster, report: PodReport, wait_seconds: int) -> Command:
    if report.is_proven_gone:
        at = timezone.now() + timedelta(seconds=wait_seconds)
        return Command(
            kind=FORGET_POD, cluster=cluster, subject_kind=POD, subject_id=report.name, not_before=at
        )
    if report.state == POD_STARTING:
        logger.warning("pod %s runs without a row; it is stopped", report.name)
    return Command(
        kind=STOP_POD,
        cluster=cluster,
        subject_kind=POD,
        subject_id=report.name,
        payload={"grace_seconds": 5},
        not_before=timezone.now(),
    )
