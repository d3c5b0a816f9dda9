"""The Celery application: it carries wake-ups of the loop, and ids of long commands. Redis holds nothing durable."""

from collections.abc import Sequence

from django.conf import settings

from controlplane.config.optional_packages import without

# Messages are JSON only (`accept_content` below), so the YAML package need not be loaded.
with without("yaml"):
    from celery import Celery
    from kombu.transport import TRANSPORT_ALIASES

# The scheme of the URL chooses the transport, before any setting.
TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), "controlplane.redis_transport:Transport"))

app = Celery("trainyard")
app.conf.update(
    broker_url=settings.REDIS_URL,
    task_default_queue="wakeup",
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
        # Each look for messages of dead workers is five requests, in every worker, also of an idle instance. They are
        # needed for nothing: the loop sends a command again that no worker claims, and wakes without a message too.
        "unacked_restore_interval": 600,
        "unacked_restore_throttle": 1,
    },
    imports=["controlplane.loop.tasks", "controlplane.commands.tasks"],
)


def run_worker(*, pool: str, concurrency: int, level: str, queues: Sequence[str] = (), name: str = "") -> int:
    """Run a worker in the foreground and return its exit code. `pool`: a Celery pool's name; `level`: of the log;
    `queues` (): Celery's default queue; `name`: "NAME@", to which the host is appended.

    Celery's command line does the same, but also loads its interactive shell: 13 MB for the life of the process.
    """
    worker = app.Worker(
        hostname=name or None,
        pool_cls=pool,
        concurrency=concurrency,
        loglevel=level.upper(),
        queues=list(queues) or None,
        # Gossip, mingle and heartbeats only serve Celery's own monitoring; here the rows show what is running.
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    return int(worker.exitcode or 0)
