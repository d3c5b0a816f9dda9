"""Verbs on nodes that move the jobs on them: drain, interruption notice, confirm dead."""

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from controlplane.access import Actor, require_admin, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict
from controlplane.actions.events import announce
from controlplane.actions.nodes import write_cordon
from controlplane.models import Event, Node
from jobs.lifecycle import QUEUED
from jobs.models import Job, Pod
from jobs.release import release
from jobs.transitions import Target, request_transitions

# Limit for the time of an interruption notice; providers give minutes.
LONGEST_NOTICE_SECONDS = 86_400


def jobs_on(node: Node) -> list[Job]:
    """Return the jobs with pods on a node, ordered by key, the lock order of every writer of several rows."""
    return list(
        Job.objects.filter(pods__node=node, pods__released_at=None)
        .order_by("pk")
        .distinct()
        .select_related("project", "user")
    )


def drain_node(node: Node, *, actor: Actor) -> list[Job]:
    """Cordon a node and request that its preemptible jobs are requeued; return those jobs. Other jobs stay until
    they end. Raises Forbidden unless the actor is an admin."""
    require_admin(actor)
    with transaction.atomic():
        # Lock order: the node before its jobs, as in confirm_dead.
        reread(node, lock=True)
        # Append events last: their counter's lock must not be held while waiting for a job's row.
        moving = [job for job in jobs_on(node) if job.is_preemptible]
        drained = Target(QUEUED, "node_drained", f"{node.name} is being drained.", {"node": node.name})
        events: list[Event | None] = [*request_transitions(((job, drained) for job in moving), actor)]
        events.append(write_cordon(node, True, "node.cordoned", actor))
        write_audit(actor, "node.drain", "node", node.name, after={"moving": [str(job.pk) for job in moving]})
        events.append(Event(kind="node.drained", node_id=node.pk, actor=actor.name, message=node.name))
        announce(*events)
    return moving


def interrupt_node(node: Node, in_seconds: int, *, actor: Actor) -> list[Job]:
    """Record that the provider withdraws a node in `in_seconds` seconds, and cordon it. Before that time the loop
    shrinks the elastic jobs on it, and stops the others with time for a checkpoint and queues them again. Returns
    the jobs on the node. Raises Forbidden unless the actor is an admin."""
    require_admin(actor)
    with transaction.atomic():
        reread(node, lock=True)
        node.interruption_at = timezone.now() + timedelta(seconds=in_seconds)
        node.interruption_by = actor.name
        node.save(update_fields=["interruption_at", "interruption_by"])
        jobs = jobs_on(node)
        events: list[Event | None] = [write_cordon(node, True, "node.cordoned", actor)]
        write_audit(actor, "node.interrupt", "node", node.name, after={"in_seconds": in_seconds})
        message = f"{node.name} will be withdrawn by its provider in {in_seconds} s."
        data = {"in_seconds": in_seconds, "jobs": len(jobs)}
        events.append(
            Event(kind="node.interrupted", node_id=node.pk, actor=actor.name, message=message, data=data)
        )
        announce(*events)
    return jobs


def confirm_dead(node: Node, *, actor: Actor) -> list[Job]:
    """Record that a node is dead and cordon it: its pods fail as `node_lost` and release their devices, after which the
    loop requeues their jobs. Returns the jobs. Raises Forbidden unless the actor is an admin, Conflict if the node is
    ready and its cluster answers."""
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
        # So that the loop can stop pods that still run if the node returns.
        events.append(write_cordon(node, True, "node.cordoned", actor))
        write_audit(actor, "node.confirm_dead", "node", node.name, after={"pods": [pod.name for pod in pods]})
        events.append(Event(kind="node.confirmed_dead", node_id=node.pk, actor=actor.name, message=node.name))
        announce(*events)
    return jobs


def _release_lost(pods: list[Pod], message: str) -> None:
    """Write that these pods are gone and release their devices. Those that had not ended become failed with the
    reason `node_lost`."""
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
