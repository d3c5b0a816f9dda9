"""Empty nodes that their provider takes away (spot nodes with an interruption notice), before it does.

Elastic jobs that follow their membership shrink; every other job saves a checkpoint, gives up all its pods and is
queued again. Every cycle derives this from the rows, so the next one repairs a crash between any two steps.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db.models import F

from controlplane.engines.base import MEMBERSHIP, Engine
from controlplane.loop.membership import Attended, attended_jobs, is_alive
from controlplane.loop.shrinking import begin_shrink, to_allowed_size
from controlplane.models import Cluster, Node
from jobs import lifecycle
from jobs.kinds import membership as rules
from jobs.models import Job, ScaleOperation
from jobs.transitions import LONGEST_GRACE_SECONDS, Target, send

CAUSE = "spot"
# Pods have ended so long before the node goes: their devices, logs and exit codes are read from it.
MARGIN_SECONDS = 5
# An operation that is open at the notice may go on until so long before the node goes.
PATIENCE_SECONDS = 30


def leave_nodes(cluster: Cluster, engine: Engine, now: datetime) -> None:
    """Have every job leave the cluster's nodes that have an interruption notice."""
    interrupted = Node.objects.filter(cluster=cluster, interruption_at__isnull=False)
    nodes = {node.pk: node for node in interrupted}
    if not nodes:
        return
    following = _following(cluster, engine)
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


def _following(cluster: Cluster, engine: Engine) -> Mapping[str, Attended]:
    if MEMBERSHIP not in engine.capabilities:
        return {}
    return {str(one.job.pk): one for one in attended_jobs(cluster) if one.generation is not None}


def _shrinks(attended: Attended, nodes: Mapping[int, Node], now: datetime) -> bool:
    """Return whether a job leaves the nodes, or has left them, by giving up workers. False: all of it must go."""
    there = [pod for pod in attended.pods if pod.node_id in nodes and is_alive(pod)]
    leaving = sorted(pod.rank for pod in there if pod.rank in attended.members)
    if not leaving:
        # Newcomers join or are sent away, and leavers end.
        return True
    goes_first = min((nodes[pod.node_id] for pod in there), key=_goes_at)
    goes_at = _goes_at(goes_first)
    if attended.operation is not None:
        is_at_it = attended.operation.cause == CAUSE
        return is_at_it or now < goes_at - timedelta(seconds=PATIENCE_SECONDS)
    chosen = None if _has_failed(attended) else to_allowed_size(attended, leaving)
    if chosen is None:
        return False
    until = max(now + timedelta(seconds=1), goes_at - timedelta(seconds=MARGIN_SECONDS))
    begin_shrink(attended, chosen, CAUSE, _why(goes_first), until, now)
    return True


def _has_failed(attended: Attended) -> bool:
    """Return whether shrinking cannot work: it failed in this attempt, or a member has finished the training."""
    members = (pod for pod in attended.pods if pod.rank in attended.members)
    if any(pod.exit_code == 0 and not is_alive(pod) for pod in members):
        return True
    before = ScaleOperation.objects.filter(job=attended.job, attempt=attended.job.attempt, cause=CAUSE)
    return before.filter(state__in=(rules.FAILED, rules.ROLLED_BACK)).exists()


def _next_of(job: Job, nodes: Mapping[int, Node]) -> Node:
    held = job.pods.filter(released_at=None, node__in=nodes).values_list("node_id", flat=True)
    return min((nodes[key] for key in held), key=_goes_at)


def _requeued(node: Node, now: datetime) -> Target:
    left = int((_goes_at(node) - now).total_seconds()) - MARGIN_SECONDS
    grace = min(LONGEST_GRACE_SECONDS, max(1, left))
    message = f"{_why(node)} It continues from its checkpoint elsewhere."
    return Target(lifecycle.QUEUED, "node_interrupted", message, {"node": node.name}, grace_seconds=grace)


def _goes_at(node: Node) -> datetime:
    assert node.interruption_at is not None
    return node.interruption_at


def _why(node: Node) -> str:
    return f"{node.name} is taken away by its provider."
