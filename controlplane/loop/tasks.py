"""Celery's task that wakes the loop of this worker's process."""

from controlplane.celery_app import app
from controlplane.loop.wake import notify_listeners


@app.task
def wake_loop() -> None:
    """Request a cycle of the loop in this worker's process, before the next period."""
    notify_listeners()
