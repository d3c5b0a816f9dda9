"""The Celery worker that hosts the loop: `manage.py loopworker`."""

import logging
from typing import TYPE_CHECKING

from celery.signals import worker_init, worker_shutdown

from controlplane.celery_app import app

if TYPE_CHECKING:
    from controlplane.loop.runner import Runner

__all__ = ["app"]
logger = logging.getLogger(__name__)

_runner: "Runner | None" = None


@worker_init.connect
def start_loop(**_: object) -> None:
    """Start the loop in the worker's process, before the worker connects to Redis. Raise SystemExit if that fails,
    which ends the worker."""
    global _runner
    try:
        from controlplane.loop.runner import Runner

        _runner = Runner()
        _runner.start()
    except Exception as error:
        logger.exception("the worker ends: it cannot host the loop")
        # SystemExit, because Celery continues after any other exception of a handler.
        raise SystemExit(1) from error


@worker_shutdown.connect
def stop_loop(**_: object) -> None:
    """Stop the loop before the worker's process ends. Waits some seconds for running work."""
    if _runner is not None:
        _runner.stop()
