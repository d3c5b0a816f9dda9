"""Celery's entry points: a task that notifies the loop in this worker's process."""

from controlplane.celery_app import app
from controlplane.loop.wake import ring_here


@app.task
def ring_bell() -> None:
    """Request a cycle at once instead of at the next period."""
    ring_here()
