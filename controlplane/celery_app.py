"""Celery: carries wake-ups and hosts the loop. Nothing durable is in Redis; the database is the queue."""

import logging
from typing import TYPE_CHECKING

from celery import Celery
from celery.signals import worker_init, worker_shutdown
from django.conf import settings

if TYPE_CHECKING:
    from controlplane.loop.runner import Runner

logger = logging.getLogger(__name__)

app = Celery("trainyard")
app.conf.update(
    broker_url=settings.REDIS_URL,
    task_default_queue="bell",
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_serializer="json",
    accept_content=["json"],
    task_time_limit=30,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "visibility_timeout": 120,
        "socket_timeout": 2,
        "socket_connect_timeout": 1,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
    imports=["controlplane.loop.tasks"],
    # the loop's own threads run every second as well: either alone is enough
    beat_schedule={
        "ring": {"task": "controlplane.loop.tasks.ring_bell", "schedule": 5.0, "options": {"expires": 5}}
    },
)

_runner: "Runner | None" = None


@worker_init.connect
def start_loop(**_: object) -> None:
    """Host the loop in the worker's process, from before the first connection to Redis."""
    global _runner
    try:
        from controlplane.loop.runner import Runner

        _runner = Runner()
        _runner.start()
    except Exception as error:
        logger.exception("the worker ends: it cannot host the loop")
        raise SystemExit(1) from error  # Celery runs on after any other error of a handler


@worker_shutdown.connect
def stop_loop(**_: object) -> None:
    """Let the loop finish what is under way."""
    if _runner is not None:
        _runner.stop()
