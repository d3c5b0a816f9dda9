"""The Celery application: wake-ups of the loop, and long commands by id. Nothing durable is in Redis."""

from celery import Celery
from django.conf import settings

app = Celery("trainyard")
app.conf.update(
    broker_url=settings.REDIS_URL,
    task_default_queue="bell",
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_serializer="json",
    accept_content=["json"],
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
    imports=["controlplane.loop.tasks", "controlplane.commands.tasks"],
)
