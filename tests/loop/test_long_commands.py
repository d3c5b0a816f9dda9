"""Long commands: claimed once, renewed, cancelled, retried, and sent again when their worker or Redis lost them."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError as OperationalDatabaseError
from django.db import connections
from django.utils import timezone
from kombu.exceptions import OperationalError

from controlplane.commands import dispatch, registry, run, tasks
from controlplane.commands.dispatch import MOST_QUEUED, Dispatcher
from controlplane.commands.errors import Cancelled, CommandRefused
from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.commands.tasks import carry_out, carry_out_here
from controlplane.engines.base import CLUSTER_FAILED, EngineUnreachable
from controlplane.models import Command
from tests.waiting import patience, wait_until

LONG_AGO = timezone.now() - timedelta(days=1)


class Copying(CommandHandler):
    """A handler that does what the test says."""

    kind, queue = "tests.copy", "tests"
    body: Callable[[CommandRun], Any]
    ends: list[tuple[str, Any]]

    def run(self, run: CommandRun) -> Any:
        return type(self).body(run)

    def on_done(self, command: Command, result: Any) -> None:
        self.ends.append(("done", result))

    def on_retry(self, command: Command, refusal: CommandRefused) -> None:
        self.ends.append(("retry", refusal.code))

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        self.ends.append(("failed", refusal.code))


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> type[Copying]:
    registry.handler_for("check_cluster")  # discovered before the registry is replaced
    monkeypatch.setattr(registry, "_handlers", dict(registry._handlers))
    Copying.ends = []
    return register(Copying)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of tasks that were published; nothing is."""
    published: list[int] = []
    monkeypatch.setattr(dispatch, "_waiting_in", lambda queue: 0)
    monkeypatch.setattr(carry_out, "apply_async", lambda args, **_: published.extend(args))
    return published


def order(**values: Any) -> Command:
    command: Command = Command.objects.create(
        kind=Copying.kind, subject_kind="cache", subject_id="c1", **values
    )
    return command


def refuse(code: str, *, is_passing: bool) -> Callable[[CommandRun], None]:
    def body(_: CommandRun) -> None:
        raise CommandRefused(code, f"It is {code}.", is_passing=is_passing)

    return body


def test_it_is_claimed_once_and_ends_with_what_its_handler_writes(db: None, copying: type[Copying]) -> None:
    command = order()
    copying.body = lambda run: (run.command.state, carry_out_here(run.command.pk))
    assert carry_out_here(command.pk)
    assert copying.ends == [("done", ("claimed", False))]
    assert not carry_out_here(command.pk)
    command.refresh_from_db()
    assert (command.state, command.tries, command.claim_token != "") == ("done", 1, True)


def test_progress_is_kept_at_most_once_a_second_and_at_the_end(db: None, copying: type[Copying]) -> None:
    command, seen = order(), []

    def body(run: CommandRun) -> None:
        for done in (1, 2, 3):
            run.report(done, 3, f"file {done}")
            seen.append(Command.objects.get(pk=command.pk).progress["done"])

    copying.body = body
    carry_out_here(command.pk)
    assert seen == [1, 1, 3]
    command.refresh_from_db()
    assert command.progress == {"done": 3, "total": 3, "message": "file 3"}


def test_what_passes_is_retried_with_backoff_and_then_fails(db: None, copying: type[Copying]) -> None:
    command = order()
    copying.body = refuse("disk_full", is_passing=True)
    for _ in range(Command.MOST_TRIES):
        Command.objects.update(not_before=LONG_AGO)
        assert carry_out_here(command.pk)
    command.refresh_from_db()
    assert (command.state, command.error) == ("failed", "It is disk_full.")
    assert copying.ends == [("retry", "disk_full")] * Command.MOST_TRIES + [("failed", "disk_full")]


def test_a_command_that_names_no_cluster_waits_for_one_that_is_away(db: None, copying: type[Copying]) -> None:
    """Of volumes, snapshots and caches: the task failed with a traceback once a minute, and no row said why."""
    command = order(tries=Command.MOST_TRIES)

    def away(_: CommandRun) -> None:
        raise EngineUnreachable("https://cluster:6443\ndoes not answer.")

    copying.body = away
    carry_out_here(command.pk)
    command.refresh_from_db()
    assert (command.state, command.error) == ("pending", "https://cluster:6443 does not answer.")
    assert copying.ends == [("retry", CLUSTER_FAILED)]
    assert command.not_before > timezone.now()


def test_what_only_waits_gives_its_thread_to_what_waits_for_one(
    db: None, copying: type[Copying], sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four snapshots that were never ready kept all threads for five minutes: no cache was filled meanwhile."""
    waits, waited = order(), []

    def body(run: CommandRun) -> None:
        waited.append(run.waited_seconds)
        run.give_way()

    copying.body = body
    carry_out_here(waits.pk)
    assert copying.ends == [("done", None)], "no other command is due"
    waits, other = order(), order(not_before=LONG_AGO)
    monkeypatch.setattr("controlplane.commands.run.time.time", lambda: 1000.0)
    assert carry_out_here(waits.pk)
    waits.refresh_from_db()
    assert (waits.state, waits.tries, waits.error, len(copying.ends)) == ("pending", 0, "", 1)
    assert waits.not_before > timezone.now()
    assert (Dispatcher().dispatch(), sent) == (1, [other.pk])
    assert not carry_out_here(waits.pk), "it lets others go first"
    Command.objects.filter(pk=other.pk).update(state="done")
    Command.objects.filter(pk=waits.pk).update(not_before=LONG_AGO)
    monkeypatch.setattr("controlplane.commands.run.time.time", lambda: 1060.0)
    assert carry_out_here(waits.pk)
    assert waited[1:] == [0.0, 60.0], "it goes on waiting, not from the beginning"
    assert copying.ends == [("done", None)] * 2


def test_a_retry_waits_and_is_sent_anew(db: None, copying: type[Copying], sent: list[int]) -> None:
    command = order()
    assert (Dispatcher().dispatch(), sent) == (1, [command.pk])
    copying.body = refuse("disk_full", is_passing=True)
    carry_out_here(command.pk)
    assert Dispatcher().dispatch() == 0, "its backoff has not ended"
    Command.objects.update(not_before=LONG_AGO)
    assert (Dispatcher().dispatch(), sent) == (1, [command.pk] * 2)


def test_what_is_final_fails_at_once(db: None, copying: type[Copying]) -> None:
    copying.body = refuse("gone", is_passing=False)
    carry_out_here(order().pk)
    assert copying.ends == [("failed", "gone")]


def test_an_end_that_cannot_be_written_is_no_end(
    db: None, copying: type[Copying], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = order()
    copying.body = lambda run: None
    with monkeypatch.context() as patch:
        patch.setattr(copying, "on_done", lambda *_: 1 / 0)
        carry_out_here(command.pk)
    command.refresh_from_db()
    assert (command.state, "division by zero" in command.error) == ("pending", True)


def test_a_cancelled_command_stops_its_handler_and_stays_cancelled(db: None, copying: type[Copying]) -> None:
    command, cleaned = order(), []

    def body(run: CommandRun) -> None:
        try:
            Command.objects.about("cache", "c1").cancel()
            run.report(1, 2)
        except Cancelled:
            cleaned.append("up")
            raise

    copying.body = body
    carry_out_here(command.pk)
    command.refresh_from_db()
    assert (command.state, cleaned, copying.ends) == ("cancelled", ["up"], [])
    assert not carry_out_here(command.pk)


@pytest.mark.django_db(transaction=True)
def test_a_claim_is_renewed_while_its_handler_reports_nothing_and_a_lost_one_is_noticed(
    copying: type[Copying], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RENEW_SECONDS", 0.01)
    command = order()

    def expiry() -> Any:
        return Command.objects.get(pk=command.pk).claim_expires_at

    def is_lost(run: CommandRun) -> bool:
        try:
            run.raise_if_cancelled()
        except Cancelled:
            return True
        return False

    def body(run: CommandRun) -> None:
        first = expiry()
        wait_until(lambda: expiry() > first, what="the claim's renewal")
        Command.objects.update(claim_token="another-worker")
        wait_until(lambda: is_lost(run), what="the handler's notice")

    copying.body = body
    carry_out_here(command.pk)
    command.refresh_from_db()
    assert (command.state, command.claim_token, copying.ends) == ("claimed", "another-worker", [])


@pytest.mark.django_db(transaction=True)
def test_a_claim_survives_a_database_error_and_is_lost_when_the_errors_last(
    copying: type[Copying], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RENEW_SECONDS", 0.01)
    command, renew, failures = order(), CommandRun._renew, iter([True, True])

    def failing(one: CommandRun, **values: object) -> bool:
        if next(failures, False):
            raise OperationalDatabaseError("database is locked")
        return renew(one, **values)

    monkeypatch.setattr(CommandRun, "_renew", failing)

    def body(run: CommandRun) -> None:
        first = Command.objects.get(pk=command.pk).claim_expires_at
        wait_until(
            lambda: Command.objects.get(pk=command.pk).claim_expires_at > first, what="the claim's renewal"
        )

    copying.body = body
    assert carry_out_here(command.pk)
    assert [end for end, _ in copying.ends] == ["done"]
    expired = CommandRun(command, "token")
    monkeypatch.setattr(run, "CLAIM_SECONDS", 0)
    failures = iter(lambda: True, False)
    with expired:
        wait_until(expired._is_lost.is_set, what="the end of a claim that cannot be renewed")


def test_tasks_are_sent_once_a_minute_and_what_a_dead_worker_held_at_once(
    db: None, copying: type[Copying], sent: list[int]
) -> None:
    command = order()
    dispatcher = Dispatcher()
    assert [dispatcher.dispatch() for _ in range(2)] == [1, 0]
    Command.objects.update(sent_at=LONG_AGO)
    assert dispatcher.dispatch() == 1, "Redis may have lost it"
    until = timezone.now() + timedelta(minutes=1)
    Command.objects.update(state="claimed", sent_at=LONG_AGO, claim_expires_at=until)
    assert dispatcher.dispatch() == 0, "a worker has it"
    Command.objects.update(claim_expires_at=LONG_AGO)
    assert dispatcher.dispatch() == 1, "its worker is dead"
    assert sent == [command.pk] * 3
    dispatcher.close()


def test_a_queue_without_workers_does_not_grow(
    db: None, copying: type[Copying], sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_waiting_in", lambda queue: MOST_QUEUED)
    order()
    assert (Dispatcher().dispatch(), sent) == (1, [])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("has_broker", [True, False], ids=["Redis is away", "no Redis"])
def test_without_redis_the_loop_carries_them_out(
    copying: type[Copying], monkeypatch: pytest.MonkeyPatch, has_broker: bool
) -> None:
    def fail(queue: str) -> int:
        raise OperationalError("connection refused")

    threads: list[str] = []
    ended = threading.Event()
    here = carry_out_here

    def carry_out_and_say(pk: int) -> None:
        here(pk)
        connections.close_all()
        ended.set()

    monkeypatch.setattr(dispatch, "_waiting_in", fail)
    monkeypatch.setattr(dispatch, "carry_out_here", carry_out_and_say)
    copying.body = lambda run: threads.append(threading.current_thread().name)
    command = order()
    dispatcher = Dispatcher(has_broker=has_broker)
    dispatcher.dispatch()
    assert ended.wait(patience(20))
    dispatcher.close()
    command.refresh_from_db()
    assert (command.state, [name[:12] for name in threads]) == ("done", ["long-command"])


def test_a_task_carries_nothing_but_the_id(db: None, copying: type[Copying]) -> None:
    command = order()
    copying.body = lambda run: "copied"
    tasks.carry_out(command.pk)
    assert copying.ends == [("done", "copied")]


def test_each_kind_has_one_handler(copying: type[Copying]) -> None:
    with pytest.raises(ValueError, match=r"tests\.copy"):
        register(Copying)
    with pytest.raises(LookupError, match="no_such_kind"):
        registry.handler_for("no_such_kind")


def test_a_command_is_due_in_the_millisecond_of_its_order(db: None, copying: type[Copying]) -> None:
    copying.body = lambda _: None
    claimed = [carry_out_here(order().pk) for _ in range(50)]
    assert claimed == [True] * 50


@pytest.mark.parametrize("is_passing", [True, False])
def test_a_refusal_with_text_that_no_database_takes_is_written(
    db: None, copying: type[Copying], *, is_passing: bool
) -> None:
    def refused(_: CommandRun) -> None:
        raise CommandRefused("unreadable", "a\0\udc80b", is_passing=is_passing)

    copying.body = refused
    command = order()
    carry_out_here(command.pk)
    command.refresh_from_db()
    assert (command.state, command.error) == ("pending" if is_passing else "failed", "a\ufffd?b")
