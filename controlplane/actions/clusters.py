"""Verbs on clusters: register, edit, detach."""

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.access import Actor, require_admin
from controlplane.actions.audit import write_audit
from controlplane.actions.outcomes import Conflict, invalid
from controlplane.loop.wake import wake
from controlplane.models import Cluster, Event, Node
from jobs.lifecycle import FINAL_STATES
from jobs.models import Job

ENGINES = ("local", "memory")  # what this installation can drive
SCHEDULERS = ("planner",)


def register_cluster(
    name: str, engine: str, settings: dict[str, Any], *, actor: Actor, scheduler: str = "planner"
) -> Cluster:
    """Register a cluster; the loop discovers its nodes. Raises Invalid for an engine that is not there, Conflict."""
    require_admin(actor)
    if engine not in ENGINES:
        raise invalid("/engine", "unknown_engine", f"The engine is one of: {', '.join(ENGINES)}.")
    if scheduler not in SCHEDULERS:
        raise invalid("/scheduler", "unknown_scheduler", f"The scheduler is one of: {', '.join(SCHEDULERS)}.")
    try:
        with transaction.atomic():
            cluster = Cluster.objects.create(name=name, engine=engine, settings=settings, scheduler=scheduler)
            write_audit(actor, "cluster.register", "cluster", name, after={"engine": engine})
            Event.objects.append([Event(kind="cluster.registered", actor=actor.name, message=name)])
            wake()
    except IntegrityError as error:
        raise Conflict("name_taken", f"There is a cluster named {name} already.") from error
    return cluster


def edit_cluster(cluster: Cluster, changes: Mapping[str, Any], *, actor: Actor) -> Cluster:
    """Change scheduler or settings (checked values). Raises Invalid for a scheduler that is not there."""
    require_admin(actor)
    if changes.get("scheduler", SCHEDULERS[0]) not in SCHEDULERS:
        raise invalid("/scheduler", "unknown_scheduler", f"The scheduler is one of: {', '.join(SCHEDULERS)}.")
    before = {name: getattr(cluster, name) for name in changes}
    with transaction.atomic():
        for name, value in changes.items():
            setattr(cluster, name, value)
        cluster.save(update_fields=list(changes))
        write_audit(actor, "cluster.edit", "cluster", cluster.name, before=before, after=dict(changes))
        Event.objects.append([Event(kind="cluster.edited", actor=actor.name, message=cluster.name)])
        wake()
    return cluster


def detach_cluster(cluster: Cluster, *, actor: Actor) -> None:
    """Stop working for a cluster. Raises Conflict while projects or unfinished jobs are on it."""
    require_admin(actor)
    with transaction.atomic():
        if Job.objects.filter(project__cluster=cluster).exclude(state__in=FINAL_STATES).exists():
            raise Conflict("cluster_in_use", f"{cluster.name} has unfinished jobs; stop them first.")
        if cluster.projects.exists():
            raise Conflict("cluster_in_use", f"{cluster.name} has projects; delete or move them first.")
        Cluster.objects.filter(pk=cluster.pk).update(detached_at=timezone.now())
        Node.objects.filter(cluster=cluster).delete()  # with its projects gone no pod refers to them
        write_audit(actor, "cluster.detach", "cluster", cluster.name)
        Event.objects.append([Event(kind="cluster.detached", actor=actor.name, message=cluster.name)])
        wake()
