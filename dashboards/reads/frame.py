"""The frame of every page: counts beside the navigation, and clusters. One query each."""

from typing import Any

from django.db.models import Count

from controlplane.access import Actor, visible_jobs, visible_project_ids
from controlplane.models import Cluster, Node, Project
from jobs.lifecycle import FINAL_STATES


def nav_counts(actor: Actor) -> dict[str, int]:
    """How many unfinished jobs, projects and nodes the actor sees."""
    jobs = visible_jobs(actor).exclude(state__in=FINAL_STATES).count()
    visible = visible_project_ids(actor)
    projects = Project.objects.count() if visible is None else len(visible)
    return {"jobs": jobs, "projects": projects, "nodes": Node.objects.count()}


def clusters() -> list[dict[str, Any]]:
    """Attached clusters by name."""
    rows = Cluster.objects.filter(detached_at=None).order_by("name")
    counted = rows.annotate(node_count=Count("nodes")).values("name", "engine", "is_reachable", "node_count")
    return [{**row} for row in counted]
