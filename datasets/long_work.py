"""Shared parts of the command handlers of data: their queue, removals, a time limit that ends with the claim, refusals,
and what is said of files that a sync could not read or left out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import CommandHandler
from controlplane.commands.run import CommandRun
from controlplane.notation import some_of
from datasets.ingest.engine import Synced
from datasets.ingest.reasons import in_words
from datasets.manifests import Manifest
from datasets.queries.datasets import shown
from datasets.storage.base import Blocked, Budget, ContentMissing

DATA = "data"
# Codes of Blocked for which work is retried without limit: the lake's server is unreachable until it is back or an
# operator corrects its address.
LAKE_AWAY = ("unreachable", "no_such_host", "not_trusted")


class Removal(CommandHandler):
    """Base of handlers that remove what is stored of a deleted row. They retry every refusal without limit, since its
    cause can be fixed at any time."""

    queue, is_cleanup = DATA, True

    def is_final(self, refusal: CommandRefused) -> bool:
        return False


def is_cancelled(run: CommandRun) -> bool:
    """Return False while the claim of the command of `run` is held; never True. Raises Cancelled when it is lost.
    For functions that call it to know whether to stop."""
    run.raise_if_cancelled()
    return False


def budget_of(
    run: CommandRun, seconds: float | None = None, give_way: Callable[[], None] | None = None
) -> Budget:
    """Return a budget of `seconds` (None: without a limit) that also ends when the claim of the command of `run`
    is lost. `give_way`: in place of that of `run`."""
    return Budget(seconds, partial(is_cancelled, run), give_way or run.give_way, run.waited_seconds)


@contextmanager
def refusals() -> Iterator[None]:
    """Context manager that translates the errors of a storage backend into CommandRefused: Blocked with its code,
    ContentMissing as `content_missing`."""
    try:
        yield
    except Blocked as blocked:
        raise CommandRefused(blocked.code, blocked.detail, is_passing=blocked.is_passing) from blocked
    except ContentMissing as missing:
        raise CommandRefused("content_missing", str(missing)) from missing


def all_read(found: Synced) -> Manifest:
    """Return the manifest of a sync without a base. Raises CommandRefused, to be retried, if files were not read."""
    if found.manifest is None:
        raise CommandRefused(
            "unreadable", f"Could not be read: {_with_reasons(found.failed)}.", is_passing=True
        )
    return found.manifest


def left_out(found: Synced) -> str:
    """Return a sentence about what a sync left out, and why; "" if nothing."""
    names = _with_reasons([(one.path, one.reason) for one in found.skipped])
    return f"Left out: {names}." if names else ""


def _with_reasons(paths: Sequence[tuple[bytes, str]]) -> str:
    return some_of(paths, lambda one: f"{shown(one[0])} ({in_words(one[1])})")
