"""What the loop finds wrong with a cluster stands among its checks, with an event, until it is over."""

from django.db import transaction

from controlplane.models import Cluster, Event

LONGEST_MESSAGE = 500


def note_finding(
    cluster: Cluster, name: str, message: str, *, without_it: str, begins: str, ends: str
) -> None:
    """Keep a failed check of this name with this message; "" when there is nothing wrong (any more). `begins` and
    `ends` are the kinds of the events, written when that changes."""
    words = {
        "name": name,
        "outcome": "failed",
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
