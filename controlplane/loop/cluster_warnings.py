"""Keep the warnings of the loop in a cluster's list of checks, with an event when one begins or ends."""

from django.db import transaction
from django.db.models import QuerySet

from controlplane.commands.registry import cleanup_kinds
from controlplane.fields import LONGEST_MESSAGE
from controlplane.models import Cluster, Command, Event
from controlplane.models.prepared import prepared

# The category under which the warnings appear among a cluster's checks.
LEFTOVERS = "leftovers"
LEFT = "Objects of deleted jobs or projects remain in the cluster; their removal is tried every 30 seconds."


def set_warning(
    cluster: Cluster, name: str, message: str, *, without_it: str, begins: str, ends: str
) -> None:
    """Set the warning `name` in the cluster's checks to `message`; "" removes it. Writes only a change.

    `without_it`: what does not work while the warning lasts. `begins`, `ends`: the kinds of the events for its begin
    and end.
    """
    words = {
        "name": name,
        # A warning, because the cluster stays in use; only the cluster's own checks may set `failed`.
        "outcome": "warning",
        "message": message[:LONGEST_MESSAGE],
        "without_it": without_it,
    }
    warning = words if message else None
    if next((check for check in cluster.checks if check["name"] == name), None) == warning:
        return
    with transaction.atomic():
        # Read again under a lock: other checks may have been written since `cluster` was read.
        row = Cluster.objects.select_for_update(no_key=True).get(pk=cluster.pk)
        others = [check for check in row.checks if check["name"] != name]
        cluster.checks = others if warning is None else [*others, warning]
        Cluster.objects.filter(pk=cluster.pk).update(checks=cluster.checks)
        Event.objects.append(
            [Event(kind=begins if warning else ends, message=words["message"] if warning else cluster.name)]
        )


@prepared
def _first_stuck_removal(cluster: int) -> QuerySet[Command]:
    return _stuck_removals().filter(cluster=cluster).order_by("pk")[:1]


def _stuck_removals() -> QuerySet[Command]:
    return Command.objects.unfinished().of_kinds(cleanup_kinds()).filter(tries__gte=Command.MOST_TRIES)


def warn_of_leftovers(cluster: Cluster) -> None:
    """Set the warning about cleanup commands that failed many times, or remove it if there are none. The commands are
    tried until they succeed."""
    message = ""
    for first in _first_stuck_removal(cluster.pk):
        count = _stuck_removals().filter(cluster=cluster).count()
        message = f"{count} removals fail, the first that of {first.subject_id}: {first.error}"
    kinds = {"begins": "cluster.leftovers", "ends": "cluster.leftovers_removed"}
    set_warning(cluster, LEFTOVERS, message, without_it=LEFT, **kinds)
