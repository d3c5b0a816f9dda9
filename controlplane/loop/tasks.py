"""Celery's entry points: a task only notifies the loop that this worker hosts."""

from celery import shared_task

from controlplane.loop.wake import ring_here


@shared_task
def ring_bell() -> None:
    """Have the loop look at once instead of at its next period."""
    ring_here()
