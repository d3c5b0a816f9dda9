"""Command handlers: each app declares its own in a module `command_handlers`, which is imported on the first
look-up.

    @register
    class FillCache(CommandHandler):
        kind, queue = "datasets.fill_cache", "data"

        def run(self, run: CommandRun) -> object: ...

A handler on ENGINE_STARTS or ENGINE_STOPS makes one short call to a cluster's engine and runs on the loop's own
threads. Any other queue is a Celery queue of that name, for work that takes seconds to hours; `manage.py worker`
consumes it.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from controlplane.commands.errors import CommandRefused
from controlplane.registration import app_modules

if TYPE_CHECKING:
    from controlplane.commands.run import CommandRun
    from controlplane.models import Command

ENGINE_STARTS, ENGINE_STOPS = "engine-starts", "engine-stops"
ENGINE_QUEUES = (ENGINE_STARTS, ENGINE_STOPS)
# The queue of the control plane's own long work.
CLUSTERS = "clusters"


class CommandHandler:
    """Executes the commands of one kind. One instance serves all threads, so it must not keep state."""

    kind: ClassVar[str]
    queue: ClassVar[str]
    # None: retried until it succeeds or is cancelled.
    max_tries: ClassVar[int | None] = 5
    # The delays before the second try, the third, and so on.
    backoff_seconds: ClassVar[tuple[int, ...]] = (1, 2, 5, 10, 30)
    # True if it removes what a deleted object left: retried without limit, because nothing else would remove it.
    is_cleanup: ClassVar[bool] = False
    # True if it is executed before the other commands of its engine queue, as stops are because they free GPUs.
    goes_first: ClassVar[bool] = False
    # True if its payload contains secrets, which must be erased when the command ends.
    has_secrets: ClassVar[bool] = False

    def run(self, run: "CommandRun") -> Any:
        """Execute the command outside any transaction and return the result for `on_done`. Must be safe to repeat.
        Raise CommandRefused, EngineRefused or EngineUnreachable to refuse; any other exception counts as a fault and
        is retried."""
        raise NotImplementedError

    def on_done(self, command: "Command", result: Any) -> None:
        """Write the `result` of `run`, in the transaction that ends the command. By default writes nothing."""

    def on_retry(self, command: "Command", refusal: CommandRefused) -> None:
        """Record why the command will be retried, for example on its job. By default writes nothing."""

    def on_failed(self, command: "Command", refusal: CommandRefused) -> None:
        """Record that the command failed for good, in the transaction that ends it. By default writes nothing."""

    def is_final(self, refusal: CommandRefused) -> bool:
        """Return whether the command fails at once, because another try would be refused too."""
        return not refusal.is_passing

    def may_retry(self, command: "Command", refusal: CommandRefused) -> bool:
        """Return whether to try again after a temporary refusal or a fault. `command.tries` counts the tries so far."""
        return self.max_tries is None or self.is_cleanup or command.tries < self.max_tries


H = TypeVar("H", bound=type[CommandHandler])
_handlers: dict[str, CommandHandler] = {}


def register(handler: H) -> H:
    """Class decorator that declares the handler of `handler.kind`. Raise ValueError if the kind has one already."""
    if handler.kind in _handlers:
        raise ValueError(f"Commands of kind {handler.kind} have a handler already.")
    _handlers[handler.kind] = handler()
    return handler


def handler_for(kind: str) -> CommandHandler:
    """Return the handler of commands of this kind. Raise LookupError if no installed app declares one."""
    handler = _declared().get(kind)
    if handler is None:
        raise LookupError(f"No installed app handles commands of kind {kind}.")
    return handler


def kinds_on(*queues: str) -> tuple[str, ...]:
    """Return the kinds of commands that are executed on these queues."""
    return tuple(kind for kind, handler in _declared().items() if handler.queue in queues)


def cleanup_kinds() -> tuple[str, ...]:
    """Return the kinds of commands that remove what deleted objects left; they are retried without limit."""
    return tuple(kind for kind, handler in _declared().items() if handler.is_cleanup)


def task_queues() -> tuple[str, ...]:
    """Return the handlers' Celery queues, sorted, without ENGINE_QUEUES, whose commands the loop executes itself."""
    return tuple(sorted({handler.queue for handler in _declared().values()} - set(ENGINE_QUEUES)))


def _declared() -> dict[str, CommandHandler]:
    _discover()
    return _handlers


@cache
def _discover() -> None:
    # Importing a module registers its handlers.
    for _ in app_modules("command_handlers"):
        pass
