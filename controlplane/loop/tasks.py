"""Celery's entry points: a task that notifies the loop in this worker's process."""

from controlplane.celery_app import app
from controlplane.loop.wake import notify_listeners


@app.task
def wake_loop() -> None:
    """Request a cycle at once instead of at the next period."""
    notify_listeners()
