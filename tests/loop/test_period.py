"""The loop's period: a second while anything is unfinished, longer while nothing is, short again when notified."""

import threading
import time
from types import SimpleNamespace

import pytest
from django.utils import timezone

from controlplane.loop import period, runner
from controlplane.loop.claims import LONG_AGO, claim, is_fresh
from controlplane.loop.cycle import LEASE, Due, keep_fresh, run_cycle
from controlplane.loop.period import (
    PERIOD_SECONDS,
    QUIET_PASS_SECONDS,
    QUIET_WORK_SECONDS,
    Period,
    is_quiet,
)
from controlplane.loop.runner import Runner
from controlplane.models import Cluster, Command, Event, Lease
from tests.builders import make_cluster, make_job, make_project
from tests.waiting import patience

pytestmark = pytest.mark.django_db


def test_all_is_quiet_when_nothing_is_unfinished() -> None:
    project = make_project()
    assert is_quiet()
    job = make_job(project)
    assert not is_quiet(), "a queued job"
    type(job).objects.update(state="succeeded")
    assert is_quiet()
    command = Command.objects.create(kind="check_cluster", subject_kind="cluster", subject_id="prod")
    assert not is_quiet(), "a command"
    Command.objects.about("cluster", "prod").cancel()
    assert is_quiet()
    command.refresh_from_db()
    Cluster.objects.update(is_reachable=False)
    assert not is_quiet(), "a cluster that does not answer"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Monotonic seconds, at the beginning of a minute; the long period begins at once."""
    clock = SimpleNamespace(now=120.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(period, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(period, "time", clock)
    return clock


def test_a_quiet_loop_is_roused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(period, "is_quiet", lambda: True)
    pace, waiting = Period(), threading.Event()
    pace.settle(0)
    ended = threading.Thread(target=lambda: (waiting.set(), pace.pause(threading.Event(), 0.0, 60.0)))
    began = time.monotonic()
    ended.start()
    waiting.wait(patience(20))
    pace.rouse()
    ended.join(30)
    assert not ended.is_alive()
    assert time.monotonic() - began < 30


def test_the_period_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Period()
    assert pace.seconds == PERIOD_SECONDS
    for quiet, seconds in ((True, QUIET_PASS_SECONDS), (False, PERIOD_SECONDS)):
        monkeypatch.setattr(period, "is_quiet", lambda quiet=quiet: quiet)
        pace.settle(0)
        assert pace.seconds == seconds


def test_the_short_period_lasts_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(period, "LINGER_SECONDS", 60.0)
    pace = Period()
    pace.settle(0)
    assert pace.seconds == PERIOD_SECONDS


def test_an_event_without_a_notification_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    project, pace = make_project(), Period()
    assert pace.has_news(lambda: False)
    pace.settle(Event.objects.last_seq())
    assert not pace.has_news(lambda: False)
    Event.objects.append([Event(kind="project.edited", project_id=project.pk)])
    assert pace.has_news(lambda: False)
    assert pace.seconds == PERIOD_SECONDS
    pace.settle(Event.objects.last_seq())
    Event.objects.append([Event(kind="telemetry.sampled")])
    assert not pace.has_news(lambda: False), "figures of idle devices"
    pace.settle(Event.objects.last_seq())
    assert not pace.has_news(lambda: False)
    monkeypatch.setattr(period, "QUIET_WORK_SECONDS", 0.0)
    assert pace.has_news(lambda: False), "after a while without any"


def test_the_engines_are_asked_now_and_then_and_a_change_stays_news_until_a_cycle_has_succeeded(
    clock: SimpleNamespace,
) -> None:
    pace, answers = Period(), iter((False, True, False))
    pace.settle(Event.objects.last_seq())
    found = []
    for clock.now in (125.0, 130.0, 135.0, 140.0, 150.0, 155.0, 165.0):
        found.append(pace.has_news(lambda: next(answers)))
    assert found == [False, False, False, False, True, True, True]
    pace.settle(Event.objects.last_seq())
    assert not pace.has_news(lambda: pytest.fail("asked at once"))
    clock.now += QUIET_WORK_SECONDS
    assert pace.has_news(lambda: pytest.fail("asked before a cycle that is due anyway"))


def test_a_notification_while_the_loop_settles_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Period()

    def is_quiet_until_a_submission() -> bool:
        pace.rouse()
        return True

    monkeypatch.setattr(period, "is_quiet", is_quiet_until_a_submission)
    pace.settle(0)
    assert pace.seconds == PERIOD_SECONDS


@pytest.mark.django_db(transaction=True)
def test_a_loop_ends_while_it_waits_for_changes(plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can interrupt such a wait."""
    is_waiting, may_end = threading.Event(), threading.Event()

    def wait_for_change(_: float) -> bool:
        is_waiting.set()
        return may_end.wait(patience(60))

    monkeypatch.setattr(plant.engine, "wait_for_change", wait_for_change)
    loop = Runner(has_broker=False)
    loop.start()
    assert is_waiting.wait(patience(30))
    [watch] = [thread for thread in threading.enumerate() if thread.name == "loop-watch"]
    loop.stop(timeout_seconds=patience(30))
    assert watch.is_alive()
    assert watch.daemon
    may_end.set()
    watch.join(patience(30))
    assert not watch.is_alive()


def test_the_first_cluster_does_not_wait_for_the_long_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(period, "is_quiet", lambda: True)
    loop = Runner()
    loop._period.settle(0)
    waited: list[float] = []

    class Busy(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return True

    monkeypatch.setattr(loop._period, "_busy", Busy())
    monkeypatch.setattr(
        loop._is_stopping, "wait", lambda seconds: pytest.fail(f"{seconds} s without a cluster")
    )
    loop._watch()
    assert waited == [QUIET_PASS_SECONDS], "ended by what ends the long period"


def test_a_wait_for_changes_lasts_for_the_period(plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait that ends wakes a thread."""
    loop, waits = Runner(), list[float]()
    loop._period.settle(0)

    def wait_for_change(seconds: float) -> bool:
        waits.append(seconds)
        loop._is_stopping.set()
        return False

    monkeypatch.setattr(plant.engine, "wait_for_change", wait_for_change)
    loop._watch()
    assert len(waits) == 1
    assert QUIET_PASS_SECONDS - 1 < waits[0] <= QUIET_PASS_SECONDS


def test_changes_of_each_cluster_request_a_cycle(plant, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, waiting = Runner(), threading.Barrier(2, timeout=patience(30))
    clusters = [plant.cluster, make_cluster("other", nodes=0)]
    monkeypatch.setattr(runner, "attached_clusters", lambda: clusters)

    class Engine:
        def __init__(self, cluster: Cluster) -> None:
            self.is_first = cluster is clusters[0]

        def wait_for_change(self, _: float) -> bool:
            waiting.wait()
            loop._is_stopping.set()
            if self.is_first:
                raise RuntimeError("a fault of one engine")
            return True

    monkeypatch.setattr(runner, "engine_for", Engine)
    loop._watch()
    assert loop._cycle_wakeup.is_set()


def test_the_loop_pauses_between_cycles_unless_starts_are_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[str] = []
    monkeypatch.setattr(Runner, "_pace", lambda *_: pauses.append("pause"))
    for due, expected in ((Due.AT_ONCE, []), (Due.SOON, ["pause"]), (Due.LATER, ["pause", "pause"])):
        monkeypatch.setattr(runner, "run_cycle", lambda *_, due=due: due)
        loop = Runner(has_broker=False)
        loop._cycle()
        assert pauses == expected
        assert loop._cycle_wakeup.is_set() == (due == Due.AT_ONCE)


def test_a_quiet_thread_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait that ends wakes a thread."""
    monkeypatch.setattr(period, "is_quiet", lambda: True)
    pace, waits = Period(), list[float]()
    pace.settle(0)
    monkeypatch.setattr(pace._busy, "wait", waits.append)
    wakeup = threading.Event()
    monkeypatch.setattr(wakeup, "wait", lambda _: pytest.fail("waited for its own notification first"))
    pace.pause(wakeup, 1.0, 60.0)
    assert waits == [60.0]


def test_quiet_threads_wake_together_whenever_they_began_to_wait(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(period, "is_quiet", lambda: True)
    pace, ends = Period(), list[float]()
    pace.settle(0)
    monkeypatch.setattr(pace._busy, "wait", lambda seconds: ends.append(round(clock.now + seconds, 3)))
    for clock.now in (121.0, 134.0, 135.1):
        pace.pause(threading.Event(), 1.0, 15.0)
        pace.pause(threading.Event(), 1.0, 60.0)
        pace.pause(threading.Event(), 1.0, 15.0, phase=0.3)
    assert ends == [135.0, 180.0, 135.3, 135.0, 180.0, 135.3, 150.0, 180.0, 135.3]


def test_a_notification_from_before_the_wait_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(period, "is_quiet", lambda: True)
    pace, wakeup = Period(), threading.Event()
    pace.settle(0)
    monkeypatch.setattr(pace._busy, "wait", lambda _: pytest.fail("the notification was overlooked"))
    wakeup.set()
    pace.pause(wakeup, 1.0, 60.0)


def test_a_cycle_that_wrote_commands_rouses_the_threads_that_carry_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Runner, "_pace", lambda *_: None)
    monkeypatch.setattr(runner, "run_cycle", lambda *_: Due.SOON)
    loop = Runner(has_broker=False)
    loop._period.settle(0)
    loop._period._passed_at = float("-inf")
    assert loop._period.seconds == QUIET_PASS_SECONDS
    loop._cycle()
    assert loop._period.seconds == PERIOD_SECONDS


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_quiet_loop_reports_that_it_runs_by_one_statement(
    is_alone: bool, django_assert_num_queries, plant
) -> None:
    assert run_cycle(timezone.now()) is not None
    Lease.objects.filter(name=LEASE).update(completed_at=LONG_AGO)
    if not is_alone:
        claim(LEASE, 60)
    with django_assert_num_queries(1):
        keep_fresh()
    assert is_fresh(LEASE, 60) == is_alone
