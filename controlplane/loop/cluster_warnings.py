"""What the loop finds wrong with a cluster stands among its checks, with an event, until it is over."""

from django.db import transaction

from controlplane.commands.registry import cleanup_kinds
from controlplane.models import Cluster, Command, Event

LONGEST_MESSAGE = 500
LEFTOVERS = "leftovers"  # its place among a cluster's checks
LEFT = "What a deleted job or project left in the cluster stays there; it is tried every 30 seconds."


def note_finding(
    cluster: Cluster, name: str, message: str, *, without_it: str, begins: str, ends: str
) -> None:
    """Keep a warning of this name with this message; "" when there is nothing wrong (any more). `begins` and
    `ends` are the kinds of the events, written when that changes."""
    words = {
        "name": name,
        "outcome": "warning",  # the cluster is used; `failed` is for looks, which decide whether it is
        "message": message[:LONGEST_MESSAGE],
        "without_it": without_it,
    }
    told = words if message else None
    if next((check for check in cluster.checks if check["name"] == name), None) == told:
        return
    with transaction.atomic():
        row = Cluster.objects.select_for_update(no_key=True).get(pk=cluster.pk)
        others = [check for check in row.checks if check["name"] != name]
        cluster.checks = others if told is None else [*others, told]
        Cluster.objects.filter(pk=cluster.pk).update(checks=cluster.checks)
        Event.objects.append(
            [Event(kind=begins if told else ends, message=words["message"] if told else cluster.name)]
        )


def tell_of_leftovers(cluster: Cluster) -> None:
    """Say what could not be cleaned up so far. It is tried until it is done."""
    cleanups = Command.objects.unfinished().of_kinds(cleanup_kinds())
    stuck = cleanups.filter(cluster=cluster, tries__gte=Command.MOST_TRIES).order_by("pk")
    first = stuck.first()
    message = (
        f"{stuck.count()} removals fail, the first that of {first.subject_id}: {first.error}" if first else ""
    )
    kinds = {"begins": "cluster.leftovers", "ends": "cluster.leftovers_removed"}
    note_finding(cluster, LEFTOVERS, message, without_it=LEFT, **kinds)
