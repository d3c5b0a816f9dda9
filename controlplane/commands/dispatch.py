"""Send due long commands to their Celery queues, again if they are not claimed (a worker died, or Redis was
wiped).

Only the loop sends: requests write a row and wake the loop, so that none waits for Redis. If Redis does not
answer, and in `manage.py runloop`, which has none, the loop executes the commands on threads of its own.
"""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from django.db import connections
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from controlplane.celery_app import app
from controlplane.commands.outcomes import due, is_any_unfinished
from controlplane.commands.registry import kinds_on, task_queues
from controlplane.commands.tasks import carry_out, carry_out_here
from controlplane.models import Command

logger = logging.getLogger(__name__)

# A task that has not begun after this time may be lost; sending it twice does no harm.
SEND_AGAIN_SECONDS = 60
# The most tasks in one queue, so that it cannot grow forever while no worker runs.
MOST_QUEUED = 100
# Two, so that one long command does not hold up all others.
LOCAL_THREADS = 2


class Dispatcher:
    """Sends due long commands to Celery. One per loop, used by one thread. `has_broker` False: there is no Redis, so
    it executes all commands on its own LOCAL_THREADS threads."""

    def __init__(self, *, has_broker: bool = True) -> None:
        self._has_broker = has_broker
        self._local = ThreadPoolExecutor(LOCAL_THREADS, thread_name_prefix="long-command")

    def dispatch(self) -> int:
        """Send the due commands that were not sent in the last SEND_AGAIN_SECONDS, at most MOST_QUEUED per queue and
        none to a queue that is full. Execute those of a queue on own threads if Redis does not answer. Return how many
        were selected, sent or not. Does not wait for them."""
        if not is_any_unfinished():
            return 0
        sent = 0
        for queue in task_queues():
            commands = _due(queue)
            if commands and not (self._has_broker and _publish(queue, commands)):
                for pk in commands:
                    self._local.submit(_carry_out_in_thread, pk)
            sent += len(commands)
        return sent

    def close(self) -> None:
        """Begin no further commands on own threads. Running ones end with the process; their claims expire and other
        workers repeat them."""
        self._local.shutdown(wait=False, cancel_futures=True)


def carry_out_due() -> int:
    """Execute every due long command in this thread; return how many were executed. For tests and replays."""
    return sum(carry_out_here(pk) for pk in _unheld(task_queues()).values_list("pk", flat=True))


def _due(queue: str) -> list[int]:
    """Mark the commands of a queue that are to be sent now, and return their ids, at most MOST_QUEUED. The mark keeps
    this and other loops from sending them again within SEND_AGAIN_SECONDS."""
    lost = Q(sent_at=None) | Q(sent_at__lte=Now() - timedelta(seconds=SEND_AGAIN_SECONDS))
    keys = list(_unheld([queue]).filter(lost).values_list("pk", flat=True)[:MOST_QUEUED])
    # The condition again, because another loop may have marked the command since it was read.
    return [pk for pk in keys if Command.objects.filter(lost, pk=pk).update(sent_at=Now())]


def _unheld(queues: Iterable[str]) -> QuerySet[Command]:
    waiting = Command.objects.filter(due(), kind__in=kinds_on(*queues))
    return waiting.order_by("pk")


def _publish(queue: str, keys: list[int]) -> bool:
    """Send tasks for these commands, unless the queue is full. Return False if Redis does not answer."""
    try:
        # These commands stay due, and are sent again after SEND_AGAIN_SECONDS.
        if _waiting_in(queue) >= MOST_QUEUED:
            return True
        for pk in keys:
            # Without Celery's own retries, which would block the loop; older tasks expire because they are
            # sent again.
            carry_out.apply_async((pk,), queue=queue, retry=False, expires=SEND_AGAIN_SECONDS)
    except (OperationalError, RedisError, OSError) as error:
        logger.warning("could not send to %s (%s); the loop carries its commands out itself", queue, error)
        return False
    return True


def _waiting_in(queue: str) -> int:
    with app.connection_for_write() as connection:
        declared = connection.default_channel.queue_declare(queue=queue, durable=True, auto_delete=False)
        return int(declared.message_count)


def _carry_out_in_thread(pk: int) -> None:
    try:
        carry_out_here(pk)
    except Exception:
        logger.exception("command %s could not be carried out; it is tried again", pk)
    finally:
        # Django closes connections only at the end of a request, and this thread serves none.
        connections.close_all()
