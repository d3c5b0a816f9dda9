"""How an action ends: its events, and a wake-up of the loop."""

from controlplane.loop.wake import wake
from controlplane.models import Event


def announce(*events: Event | None) -> None:
    """Append events, except None, and request a cycle of the loop. Call it last in the transaction, as
    `EventManager.append`."""
    Event.objects.append(events)
    wake()
