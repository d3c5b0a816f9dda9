"""Verbs on nodes and node pools: cordon, uncordon, drain, confirm dead, assign to a pool."""

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.access import Actor, require_admin, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict
from controlplane.loop.wake import wake
from controlplane.models import Cluster, Event, Node, NodePool
from jobs.lifecycle import QUEUED
from jobs.models import Job, Pod
from jobs.release import release
from jobs.transitions import Target, request_transitions


def cordon_node(node: Node, *, actor: Actor) -> Node:
    """Give the node no new pods; its pods stay."""
    return _set_cordon(node, True, "node.cordoned", actor)


def uncordon_node(node: Node, *, actor: Actor) -> Node:
    """Allow new pods on the node again."""
    return _set_cordon(node, False, "node.uncordoned", actor)


def jobs_on(node: Node) -> list[Job]:
    """Return the jobs with pods on a node: a drain moves the preemptible ones and waits for the others. Ordered by
    key, the lock order of every writer of several rows.
    """
    return list(
        Job.objects.filter(pods__node=node, pods__released_at=None)
        .order_by("pk")
        .distinct()
        .select_related("project", "user")
    )


def drain_node(node: Node, *, actor: Actor) -> list[Job]:
    """Cordon a node and requeue its preemptible jobs. Return those; interactive jobs stay until they end."""
    require_admin(actor)
    with transaction.atomic():
        # the node before its jobs, as in confirm_dead
        reread(node, lock=True)
        # rows first and events last: their counter must not be held while waiting for a job's row
        moving = [job for job in jobs_on(node) if job.is_preemptible]
        drained = Target(QUEUED, "node_drained", f"{node.name} is being drained.", {"node": node.name})
        events: list[Event | None] = [*request_transitions(((job, drained) for job in moving), actor)]
        events.append(_cordon(node, True, "node.cordoned", actor))
        write_audit(actor, "node.drain", "node", node.name, after={"moving": [str(job.pk) for job in moving]})
        events.append(Event(kind="node.drained", node_id=node.pk, actor=actor.name, message=node.name))
        Event.objects.append([event for event in events if event is not None])
        wake()
    return moving


def confirm_dead(node: Node, *, actor: Actor) -> list[Job]:
    """Accept an operator's statement that an unreachable node is dead: release its pods' devices and requeue their
    jobs. Cordons the node, since it may return with those pods, which the loop then stops. Return the jobs. Raises
    Conflict for a ready node.
    """
    require_admin(actor)
    with transaction.atomic():
        reread(node, lock=True)
        if node.is_ready and node.cluster.is_reachable:
            raise Conflict(
                "node_ready", f"{node.name} answers. Drain it instead; a dead node must not be ready."
            )
        jobs, pods = (
            jobs_on(node),
            list(Pod.objects.filter(node=node, released_at=None).select_related("job")),
        )
        _release_lost(pods, f"{actor.name} confirmed that {node.name} is dead.")
        events: list[Event | None] = [_lost_event(pod, node, actor) for pod in pods]
        events.append(_cordon(node, True, "node.cordoned", actor))
        write_audit(actor, "node.confirm_dead", "node", node.name, after={"pods": [pod.name for pod in pods]})
        events.append(Event(kind="node.confirmed_dead", node_id=node.pk, actor=actor.name, message=node.name))
        Event.objects.append([event for event in events if event is not None])
        wake()
    return jobs


def create_pool(cluster: Cluster, name: str, *, actor: Actor) -> NodePool:
    """Create a node pool. Raises Conflict when the name is taken."""
    require_admin(actor)
    try:
        with transaction.atomic():
            pool = NodePool.objects.create(cluster=cluster, name=name)
            write_audit(actor, "node_pool.create", "node_pool", name)
            Event.objects.append([Event(kind="node_pool.created", actor=actor.name, message=name)])
    except IntegrityError as error:
        raise Conflict("name_taken", f"There is a node pool named {name} already.") from error
    return pool


def set_node_pool(node: Node, pool: NodePool | None, *, actor: Actor) -> Node:
    """Move a node to a pool, or out of any."""
    require_admin(actor)
    with transaction.atomic():
        before = {"pool": node.pool.name if node.pool else None}
        node.pool = pool
        node.save(update_fields=["pool"])
        after = {"pool": pool.name if pool else None}
        write_audit(actor, "node.set_pool", "node", node.name, before=before, after=after)
        Event.objects.append(
            [Event(kind="node.moved", node_id=node.pk, actor=actor.name, message=node.name, data=after)]
        )
        wake()
    return node


def _release_lost(pods: list[Pod], message: str) -> None:
    """Mark these pods as lost with their node and release their devices."""
    now, lost = timezone.now(), Pod.objects.filter(pk__in=[pod.pk for pod in pods], released_at=None)
    lost.exclude(state__in=("succeeded", "failed")).update(
        state="failed", reason="node_lost", message=message, finished_at=now
    )
    lost.update(released_at=now)
    release(pods, now, message)


def _lost_event(pod: Pod, node: Node, actor: Actor) -> Event:
    return Event(
        kind="pod.released",
        job_id=pod.job_id,
        project_id=pod.job.project_id,
        node_id=node.pk,
        actor=actor.name,
        reason="node_lost",
        message=f"Rank {pod.rank} was lost with {node.name}.",
        data={"rank": pod.rank, "exit_code": None},
    )


def _set_cordon(node: Node, is_cordoned: bool, kind: str, actor: Actor) -> Node:
    require_admin(actor)
    with transaction.atomic():
        event = _cordon(node, is_cordoned, kind, actor)
        if event is not None:
            Event.objects.append([event])
            wake()
    return node


def _cordon(node: Node, is_cordoned: bool, kind: str, actor: Actor) -> Event | None:
    """Write the cordon and its audit row; return None if nothing changes."""
    changed = Node.objects.filter(pk=node.pk, is_cordoned=not is_cordoned).update(is_cordoned=is_cordoned)
    node.is_cordoned = is_cordoned
    if changed != 1:
        return None
    write_audit(actor, kind, "node", node.name, after={"is_cordoned": is_cordoned})
    return Event(kind=kind, node_id=node.pk, actor=actor.name, message=node.name)
