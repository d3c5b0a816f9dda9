"""The frame of every page: counts beside the navigation, and clusters. One query each."""

from typing import Any

from django.db.models import Count

from controlplane.access import Actor, visible_jobs
from controlplane.models import Cluster, Node, Project
from jobs.lifecycle import FINAL_STATES


def nav_counts(actor: Actor) -> dict[str, int]:
    """What the pages list: unfinished jobs that the actor sees, all projects, all nodes."""
    return {
        "jobs": unfinished_jobs(actor),
        "projects": Project.objects.count(),
        "nodes": Node.objects.count(),
    }


def unfinished_jobs(actor: Actor) -> int:
    """How many unfinished jobs the actor sees."""
    return visible_jobs(actor).exclude(state__in=FINAL_STATES).count()


def clusters() -> list[dict[str, Any]]:
    """Attached clusters by name."""
    rows = Cluster.objects.filter(detached_at=None, state=Cluster.ATTACHED).order_by("name")
    counted = rows.annotate(node_count=Count("nodes")).values("name", "engine", "is_reachable", "node_count")
    return [{**row} for row in counted]
