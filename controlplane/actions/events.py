"""How an action ends: its events, and a wake-up of the loop."""

from controlplane.loop.wake import wake
from controlplane.models import Event


def announce(*events: Event | None) -> None:
    """Append events, ignoring None, and wake the loop after the commit. Call it last in the transaction, because
    `EventManager.append` locks the event counter until the commit."""
    Event.objects.append(events)
    wake()
