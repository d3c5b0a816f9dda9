"""Move jobs off nodes that their provider is about to take away (spot nodes with an interruption notice).

Elastic jobs that follow their membership shrink; every other job saves a checkpoint, releases all its pods and
is queued again. Every cycle derives this from the rows, so the next one repairs a crash between any two steps.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, QuerySet

from controlplane.engines.base import MEMBERSHIP, Engine
from controlplane.loop.membership import Attended, ElasticJobs, is_alive
from controlplane.loop.shrinking import begin_shrink, cannot_shrink, hasten, to_allowed_size
from controlplane.models import Cluster, Command, Node
from controlplane.models.prepared import prepared
from controlplane.scheduling.plan import Plan
from jobs import lifecycle
from jobs.command_kinds import POD, STOP_POD
from jobs.models import Allocation, Job, Pod, ScaleOperation
from jobs.transitions import STOP_GRACE_SECONDS, Target, send, shorten_stops, stop_pods

CAUSE = "spot"
REASON = "node_interrupted"
# Pods must end this long before the node does: their devices, logs and exit codes are read from it.
MARGIN_SECONDS = 5
# The longest wait for workers that do not acknowledge and programs that ignore SIGTERM, however early the
# notice: their GPUs may be owed to other projects.
LONGEST_WAIT_SECONDS = 600
# The margin after an operation's deadline, in which it is rolled back and the job shrunk; at most half of the
# time that is left then.
DEADLINE_MARGIN = timedelta(seconds=30)


def leave_nodes(cluster: Cluster, elastic: ElasticJobs, engine: Engine, now: datetime) -> None:
    """Let every job leave the cluster's nodes that have an interruption notice: shrink it, or stop and queue it
    again. Safe to repeat."""
    nodes = {node.pk: node for node in _interrupted(cluster.pk)}
    if not nodes:
        return
    _shorten_graces(nodes, now)
    following = _following(elastic, engine)
    jobs = Job.objects.filter(
        project__cluster=cluster,
        state__in=lifecycle.WORKING_STATES,
        pods__node__in=nodes,
        pods__released_at=None,
        pods__attempt__number=F("attempt"),
    )
    targets = []
    for job in jobs.distinct().order_by("pk").select_related("project"):
        attended = following.get(str(job.pk))
        if attended is None or not _shrinks(attended, nodes, now):
            targets.append((job, _requeued(_next_of(job, nodes), now)))
    if targets:
        send(targets)


@prepared
def _interrupted(cluster: int) -> QuerySet[Node]:
    return Node.objects.filter(cluster=cluster, interruption_at__isnull=False)


def _shorten_graces(nodes: Mapping[int, Node], now: datetime) -> None:
    """Repeat stops whose grace period would outlast the pod's node, because the notice came, or was moved forward,
    after the stop."""
    stopping = Pod.objects.filter(node__in=nodes, released_at=None, job__state=lifecycle.STOPPING)
    pods = {pod.name: pod for pod in stopping.select_related("job__project")}
    ends: dict[str, datetime] = {}
    for order in Command.objects.filter(kind=STOP_POD, subject_kind=POD, subject_id__in=pods):
        end = order.created_at + timedelta(seconds=order.payload["grace_seconds"])
        ends[order.subject_id] = min(end, ends.get(order.subject_id, end))
    for name, end in sorted(ends.items()):
        node = nodes[pods[name].node_id]
        if now < _goes_at(node) < end:
            stop_pods(pods[name].job.project, [name], _seconds_left(node, now))


def hasten_owed(cluster: Cluster, plan: Plan) -> None:
    """Shorten the grace period of jobs that leave interrupted nodes to STOP_GRACE_SECONDS, if the plan promises their
    GPUs to queued jobs of other projects that are below their fair share, or to missing workers of other projects'
    jobs. Such a job may hold GPUs of other nodes too, and its own grace period may be minutes."""
    owed = {one.project for one in plan.shares if one.allocated_milli_gpus < one.fair_share_milli_gpus}
    wanted: dict[tuple[str, int], str] = {}
    # Promised jobs are the first; the others of a long queue need not be explained for this.
    given = [
        (hold.project, plan.promised[hold.job])
        for hold in plan.holds[: len(plan.promised)]
        if hold.project in owed
    ]
    given += [(one.project, one.placements) for one in plan.growth if one.is_promised]
    for project, placements in given:
        for place in placements:
            wanted |= {(place.node, index): project for index, _ in place.devices}
    if not wanted:
        return
    leaving = Allocation.objects.filter(
        released_at=None,
        pod__job__project__cluster=cluster,
        pod__job__state=lifecycle.STOPPING,
        pod__job__reason=REASON,
    )
    rows = leaving.values_list("pod__job", "pod__job__project__name", "device__node__name", "device__index")
    jobs = {job for job, project, node, index in rows if wanted.get((node, index), project) != project}
    if not jobs:
        # Checked outside a transaction, because on SQLite even one without writes waits for the only writer.
        return
    with transaction.atomic():
        for job in Job.objects.filter(pk__in=jobs).select_related("project").order_by("pk"):
            shorten_stops(job, STOP_GRACE_SECONDS)


def _following(elastic: ElasticJobs, engine: Engine) -> Mapping[str, Attended]:
    if MEMBERSHIP not in engine.capabilities:
        return {}
    return elastic.with_members()


def _shrinks(attended: Attended, nodes: Mapping[int, Node], now: datetime) -> bool:
    """Return whether the job leaves the nodes, or has left them, by removing workers; begins that if needed. False if
    the whole job must stop."""
    there = [pod for pod in attended.pods if pod.node_id in nodes and is_alive(pod)]
    if not there:
        return True
    goes_first = min((nodes[pod.node_id] for pod in there), key=_goes_at)
    until = now + timedelta(seconds=_seconds_left(goes_first, now))
    if attended.operation is not None and attended.operation.cause == CAUSE:
        hasten(attended.operation, until)
        return True
    leaving = sorted(pod.rank for pod in there if pod.rank in attended.members)
    if not leaving:
        # No member holds these devices: the pods are new workers, which the operation adds or dismisses, or
        # leaving ones.
        return True
    if attended.operation is not None:
        return _may_end(attended.operation, _goes_at(goes_first), now)
    chosen = None if cannot_shrink(attended, CAUSE) else to_allowed_size(attended, leaving)
    if chosen is None:
        return False
    begin_shrink(attended, chosen, CAUSE, _why(goes_first), until, now)
    return True


def _may_end(operation: ScaleOperation, goes_at: datetime, now: datetime) -> bool:
    """Limit an operation of another cause to half of the time until `goes_at`, when the node goes: if it is rolled
    back then, the job can still be shrunk. Return whether there is time for both."""
    left = min(timedelta(seconds=LONGEST_WAIT_SECONDS), goes_at - now)
    deadline = hasten(operation, now + left / 2)
    return now < deadline + min(DEADLINE_MARGIN, (goes_at - deadline) / 2)


def _next_of(job: Job, nodes: Mapping[int, Node]) -> Node:
    held = job.pods.filter(released_at=None, node__in=nodes).values_list("node_id", flat=True)
    return min((nodes[key] for key in held), key=_goes_at)


def _requeued(node: Node, now: datetime) -> Target:
    message = f"{_why(node)} It continues from its checkpoint elsewhere."
    grace = _seconds_left(node, now)
    return Target(lifecycle.QUEUED, REASON, message, {"node": node.name}, grace_seconds=grace)


def _seconds_left(node: Node, now: datetime) -> int:
    """Return in how many seconds the node's pods must have ended: 1 to LONGEST_WAIT_SECONDS."""
    left = int((_goes_at(node) - now).total_seconds()) - MARGIN_SECONDS
    return min(LONGEST_WAIT_SECONDS, max(1, left))


def _goes_at(node: Node) -> datetime:
    assert node.interruption_at is not None
    return node.interruption_at


def _why(node: Node) -> str:
    return f"{node.name} will be withdrawn by its provider."
