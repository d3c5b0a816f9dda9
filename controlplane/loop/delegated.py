"""Clusters whose own scheduler places pods: a queued job is offered to it as pods without a node (an "offer").

An offer is the next attempt of a queued job, and its pods have the names of that attempt. The attempt gets no rows
until the cluster's scheduler has placed all of its pods. Withdrawing an offer (job stopped, priority changed, pod
lost) skips its attempt number, so that pod names are never used twice. Its pods are then without a row, and reconcile
ends them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controlplane.commands.errors import CommandRefused
from controlplane.engines import base
from controlplane.engines.base import Engine, PodReport, is_job_id
from controlplane.engines.kinds import is_delegated
from controlplane.loop.observe import Observation
from controlplane.loop.podspecs import start_payloads
from controlplane.loop.project_sync import unsynced_projects
from controlplane.models import Cluster, Command, Node
from controlplane.scheduling.capacity import WHOLE_GPU
from controlplane.scheduling.delegated import Bound, Group, Offer, Wish, decide_offers
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.reasons import CLUSTER_REFUSES
from controlplane.scheduling.view import ClusterView, PodPlacement
from jobs import lifecycle
from jobs.command_kinds import POD, START_POD
from jobs.kinds.registry import KINDS
from jobs.models import Job
from jobs.transitions import Target, send

# The engine's report may be some seconds old, so an offered pod that is absent from it counts as lost only
# after this time.
LOST_AFTER_SECONDS = 5
# The most jobs offered in one cycle, so that a burst of submissions does not make one cycle long; the next
# ones offer the rest.
MOST_OFFERED = 500

Reports = Mapping[str, PodReport]
_VOID = base.DISRUPTIONS | {base.STOPPED}


@dataclass(frozen=True, slots=True)
class Offered:
    """The plan of one cycle. `has_orders`: commands that start pods were written."""

    plan: Plan
    has_orders: bool


def decide_by_cluster(cluster: Cluster, engine: Engine | None, seen: Observation, now: datetime) -> Offered:
    """Return a plan with the starts that the cluster's scheduler has decided, and offer it the queued jobs (writes
    commands). `engine`: None if it is unreachable; then nothing new is offered."""
    reports: Reports = {report.name: report for report in engine.pods()} if engine else {}
    queued = Job.objects.filter(project__cluster=cluster, state=lifecycle.QUEUED)
    attempts = {str(key): number for key, number in queued.values_list("pk", "attempt")}
    orders = _orders(attempts)
    offers = _of_wanted_size({**_refused(cluster, attempts), **_offers(reports, attempts)}, orders, seen.view)
    answer = decide_offers(seen.view, offers, _shared_devices(seen.view, reports.values()))
    started = {start.job for start in answer.plan.starts}
    wishes = [wish for wish in answer.wishes if wish.job not in started]
    # Read after the jobs, because a project is always changed before jobs are submitted under its new numbers.
    unsynced = unsynced_projects(cluster, engine, now) if engine else frozenset()
    return Offered(
        answer.plan, _make_offers(cluster, wishes, unsynced, seen.view, attempts, orders, reports, now)
    )


def open_offers(cluster: Cluster, orphans: Sequence[PodReport]) -> set[str]:
    """Return the names of those pods without a row (`orphans`) that belong to valid offers and may stay. The attempt
    numbers of invalid offers are skipped. Where our own scheduler places pods, every offer is invalid."""
    takes_offers = is_delegated(cluster.scheduler)
    groups: dict[tuple[str, int], list[PodReport]] = defaultdict(list)
    for report in orphans:
        parts = base.parts_of(report.name)
        if parts is not None and is_job_id(parts[0]):
            groups[parts[0], parts[1]].append(report)
    rows = Job.objects.filter(pk__in={job for job, _ in groups}, project__cluster=cluster)
    jobs = {str(key): (state, number) for key, state, number in rows.values_list("pk", "state", "attempt")}
    staying: set[str] = set()
    for (job, number), pods in groups.items():
        state, attempt = jobs.get(job, ("", 0))
        if number != attempt + 1:
            continue
        if takes_offers and state == lifecycle.QUEUED and not any(_is_void(pod) for pod in pods):
            staying |= {pod.name for pod in pods}
        else:
            _use_up([job], number)
    return staying


def refuse_offer(command: Command, refusal: CommandRefused) -> None:
    """Fail the job of an offer that the cluster refused permanently (`command`: its start command). A refusal for a
    reason that is not the job's changes nothing: the job is offered again."""
    if refusal.code in base.DISRUPTIONS:
        return
    payload = command.payload
    job = Job.objects.filter(
        pk=payload["job_id"], state=lifecycle.QUEUED, attempt=payload["attempt"] - 1
    ).first()
    if job is None or payload["node"]:
        return
    send([(job, Target(lifecycle.FAILED, refusal.code, refusal.message))])


def _is_void(report: PodReport) -> bool:
    """Return whether the pod of an offer can no longer become part of an attempt: it was disrupted or stopped, or
    ended without a node."""
    has_ended = report.state in base.FINAL_STATES
    return report.reason in _VOID or (has_ended and not report.node)


def _use_up(jobs: Iterable[str], number: int) -> None:
    """Skip the attempt `number` of these jobs, except active ones, so that its pod names are not used again."""
    waiting = Job.objects.filter(pk__in=jobs, attempt=number - 1).exclude(state__in=lifecycle.ACTIVE_STATES)
    waiting.update(attempt=number)


def _offers(reports: Reports, attempts: Mapping[str, int]) -> dict[str, Offer]:
    """Return, by job id, the offers whose pods exist in the cluster. `reports`: pods by name; `attempts`: the current
    attempt number by job id."""
    pods: dict[str, list[tuple[int, PodReport]]] = defaultdict(list)
    for report in reports.values():
        parts = base.parts_of(report.name)
        if parts is not None and attempts.get(parts[0], -1) == parts[1] - 1 and not _is_void(report):
            pods[parts[0]].append((parts[2], report))
    return {job: _offer(found) for job, found in pods.items()}


def _of_wanted_size(
    offers: Mapping[str, Offer], orders: Mapping[str, "_Order"], view: ClusterView
) -> dict[str, Offer]:
    """Return the offers with as many pods as their jobs request now. Pods start with a fixed world size, so an offer
    from before a scale operation cannot be used; `_make_offers` withdraws it."""
    pods = {job.id: job.pods for job in view.jobs}
    return {
        job: offer for job, offer in offers.items() if job not in orders or orders[job].pods == pods.get(job)
    }


def _refused(cluster: Cluster, attempts: Mapping[str, int]) -> dict[str, Offer]:
    """Return, by job id, the offers that the cluster refuses at present, each with its message. `attempts`: the
    current attempt number by job id."""
    orders = Command.objects.unfinished().filter(cluster=cluster, kind=START_POD)
    found: dict[str, Offer] = {}
    for name, words in orders.exclude(error="").order_by("-pk").values_list("subject_id", "error"):
        parts = base.parts_of(name)
        if parts is not None and attempts.get(parts[0], -1) == parts[1] - 1:
            found[parts[0]] = Offer((), CLUSTER_REFUSES, words)
    return found


def _offer(pods: list[tuple[int, PodReport]]) -> Offer:
    bound = tuple(Bound(rank, pod.node, pod.device_group) for rank, pod in pods if pod.node)
    verdict = next((pod.verdict for _, pod in pods if pod.verdict is not None), None)
    if verdict is None:
        return Offer(bound)
    return Offer(bound, verdict.reason, verdict.message, verdict.details)


def _shared_devices(view: ClusterView, reports: Iterable[PodReport]) -> dict[Group, int]:
    """Return the device index of each group of pods that share a GPU, for groups in which an active job has a pod."""
    groups = {
        parts[::2]: (report.node, report.device_group)
        for report in reports
        if report.device_group and (parts := base.parts_of(report.name)) is not None
    }
    if not groups:
        return {}
    return {
        group: at.devices[0][0]
        for job in view.jobs
        for at in job.placements
        if at.devices and (group := groups.get((job.id, at.rank))) is not None and group[0] == at.node
    }


def _make_offers(
    cluster: Cluster,
    wishes: Sequence[Wish],
    unsynced: frozenset[str],
    view: ClusterView,
    attempts: Mapping[str, int],
    orders: Mapping[str, "_Order"],
    reports: Reports,
    now: datetime,
) -> bool:
    """Write commands that offer the queued jobs of `wishes` without an offer, and withdraw offers that no longer
    match their job; the next cycle offers these again. Return whether there are commands to execute.

    Jobs of `unsynced` projects get no new offer: the cluster would place them by outdated quotas. `attempts`,
    `orders`: see `_orders`. `reports`: the cluster's pods by name.
    """
    jobs = {job.id: job for job in view.jobs}
    avoided = _cordoned(cluster)
    fresh: list[Wish] = []
    for wish in wishes:
        if wish.job not in attempts:
            continue
        order, name = orders.get(wish.job), base.pod_name(wish.job, attempts[wish.job] + 1, 0)
        job = jobs[wish.job]
        if order is None:
            if job.project not in unsynced:
                fresh.append(wish)
            continue
        is_other = order.offers != (job.priority, list(wish.node_pools), avoided, job.pods)
        is_lost = name not in reports and order.is_older_than(now - timedelta(seconds=LOST_AFTER_SECONDS))
        if is_other or is_lost:
            _use_up([wish.job], attempts[wish.job] + 1)
    if not fresh:
        return False
    _order(cluster, fresh[:MOST_OFFERED], avoided)
    return True


def _cordoned(cluster: Cluster) -> list[str]:
    """Return the names of the nodes that are cordoned in Trainyard. Offers exclude them, because the cluster's
    scheduler cannot see this cordon."""
    nodes = Node.objects.filter(cluster=cluster, is_cordoned=True).order_by("name")
    return list(nodes.values_list("name", flat=True))


@dataclass(frozen=True, slots=True)
class _Order:
    """The last command that starts rank 0 of a job's next attempt. `offers`: priority, node pools, nodes to avoid,
    number of pods; `done_at`: when it was executed, None if it was not."""

    offers: tuple[int, list[str], list[str], int]
    done_at: datetime | None

    @property
    def pods(self) -> int:
        return self.offers[3]

    def is_older_than(self, at: datetime) -> bool:
        return self.done_at is not None and self.done_at < at


def _orders(attempts: Mapping[str, int]) -> dict[str, _Order]:
    """Return, by job id, the last command that starts rank 0 of the job's next attempt; without jobs that have none.
    `attempts`: the current attempt number by job id."""
    jobs = {base.pod_name(job, number + 1, 0): job for job, number in attempts.items()}
    rows = Command.objects.filter(kind=START_POD, subject_id__in=list(jobs)).order_by("pk")
    wishes = ("payload__priority", "payload__node_pools", "payload__avoid_nodes", "payload__world_size")
    return {
        jobs[name]: _Order((priority, list(pools or ()), list(avoided or ()), pods), finished_at)
        for name, priority, pools, avoided, pods, finished_at in rows.values_list(
            "subject_id", *wishes, "finished_at"
        )
    }


def _order(cluster: Cluster, wishes: Sequence[Wish], avoided: Sequence[str]) -> None:
    rows = Job.objects.filter(pk__in=[wish.job for wish in wishes]).select_related("project__cluster")
    jobs = {str(job.pk): job for job in rows}
    Command.objects.bulk_create(
        Command(
            kind=START_POD, cluster=cluster, subject_kind=POD, subject_id=payload["name"], payload=payload
        )
        for wish in wishes
        if wish.job in jobs
        for payload in offer_payloads(jobs[wish.job], wish.node_pools, avoided)
    )


def offer_payloads(job: Job, node_pools: Sequence[str], avoided: Sequence[str]) -> list[dict[str, Any]]:
    """Return the PodSpecs of the job's next attempt as JSON, without nodes. `avoided`: names of nodes on which it
    must not run. `job.attempt` is changed meanwhile and restored."""
    number, job.attempt = job.attempt, job.attempt + 1
    try:
        shapes = KINDS[job.kind].pods(job.spec)
        placements = {shape.rank: PodPlacement(shape.rank, "", _asked(job)) for shape in shapes}
        where = {"node_pools": list(node_pools), "avoid_nodes": list(avoided)}
        return [payload | where for payload in start_payloads(job, shapes, placements, defaultdict(int))]
    finally:
        job.attempt = number


def _asked(job: Job) -> tuple[tuple[int, int], ...]:
    """Return the devices that one pod requests, as (index, milli-GPUs); () for none. A share by memory has 0
    milli-GPUs."""
    if job.gpu_memory_mib is not None:
        return ((0, 0),)
    if job.milli_gpus < WHOLE_GPU:
        return ((0, job.milli_gpus),) if job.milli_gpus else ()
    return tuple((index, WHOLE_GPU) for index in range(job.milli_gpus // WHOLE_GPU))
