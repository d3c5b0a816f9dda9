"""Celery's entry points: a task that notifies the loop in this worker's process."""

from celery import shared_task

from controlplane.loop.wake import ring_here


@shared_task
def ring_bell() -> None:
    """Request a cycle at once instead of at the next period."""
    ring_here()
