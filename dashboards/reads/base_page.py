"""Data for every page: counts of the navigation, and clusters. One query each."""

from typing import Any

from django.db.models import Count

from controlplane.access import Actor
from controlplane.models import Cluster
from jobs.access import visible_jobs
from jobs.lifecycle import FINAL_STATES


def unfinished_jobs(actor: Actor) -> int:
    """Return the number of unfinished jobs that the actor may see."""
    return visible_jobs(actor).exclude(state__in=FINAL_STATES).count()


def clusters() -> list[dict[str, Any]]:
    """Return every cluster that is not detached, by name, with its condition (`shown_state`) and node counts."""
    rows = Cluster.objects.filter(detached_at=None).order_by("name")
    counted = rows.annotate(node_count=Count("nodes")).values("name", "state", "is_reachable", "node_count")
    return [
        {
            "name": row["name"],
            "nodes": row["node_count"],
            "state": shown_state(row["state"], is_reachable=row["is_reachable"]),
        }
        for row in counted
    ]


def shown_state(state: str, *, is_reachable: bool) -> str:
    """Return a cluster's condition in one word: its state, or "unreachable" for an attached cluster that does not
    answer."""
    return "unreachable" if state == Cluster.ATTACHED and not is_reachable else state
