"""Steps that apps declare: each runs when it is due, in one loop, and a failing one stops no other."""

import os
import subprocess
import sys
import threading
from collections.abc import Collection
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.loop import steps
from controlplane.loop.claims import LONG_AGO, claim
from controlplane.loop.steps import LoopStep, StepRunner, declared_steps
from controlplane.models import Lease
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


class Clock:
    """Monotonic seconds that the test sets."""

    now = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: self.now))


def declare(monkeypatch: pytest.MonkeyPatch, *declared: LoopStep) -> None:
    monkeypatch.setattr(steps, "declared_steps", lambda: declared)


def test_a_step_runs_when_it_is_due_and_after_a_failure_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = Clock(monkeypatch), list[tuple[str, float]]()

    def fail(_: datetime) -> None:
        ran.append(("poison", clock.now))
        raise ZeroDivisionError

    often = LoopStep("often", lambda _: ran.append(("often", clock.now)), 30)
    declare(monkeypatch, LoopStep("poison", fail, 60), often)
    runner = StepRunner()
    monkeypatch.setattr(steps, "_completions", list)
    for clock.now in (0.0, 29.0, 31.0, 60.0, 62.0, 120.0):
        runner.run_due(timezone.now())
    assert ran == [("often", 31.0), ("poison", 60.0), ("often", 62.0), ("poison", 120.0), ("often", 120.0)]


def test_of_two_loops_one_runs_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = Clock(monkeypatch), list[str]()
    declare(monkeypatch, LoopStep("once", lambda _: ran.append("once"), 60))
    runners = [StepRunner(), StepRunner()]
    clock.now = 61.0
    for runner in runners:
        runner.run_due(timezone.now())
    assert ran == ["once"]


def test_a_loop_that_stops_leaves_the_other_steps_to_other_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = Clock(monkeypatch), list[str]()

    def stop(_: datetime) -> None:
        runner.stop()
        ran.append("stopping")

    declare(monkeypatch, LoopStep("first", stop, 60), LoopStep("second", lambda _: ran.append("second"), 60))
    runner, other = StepRunner(), StepRunner()
    clock.now = 61.0
    runner.run_due(timezone.now())
    assert ran == ["stopping"]
    assert not Lease.objects.exclude(token="").exists()
    other.run_due(timezone.now())
    assert ran == ["stopping", "second"]


def test_a_step_that_another_loop_is_at_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = Clock(monkeypatch), list[str]()
    declare(monkeypatch, LoopStep("held", lambda _: ran.append("held"), 60))
    runner = StepRunner()
    assert claim("step:held", 60)
    clock.now = 61.0
    runner.run_due(timezone.now())
    assert ran == []


def test_the_leases_of_all_due_steps_take_three_statements(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries
) -> None:
    clock, ran = Clock(monkeypatch), list[str]()
    declare(monkeypatch, *(LoopStep(name, lambda _, name=name: ran.append(name), 60) for name in "abcde"))
    runner = StepRunner()
    clock.now = 61.0
    runner.run_due(timezone.now())
    assert ran == [*"abcde"]
    Lease.objects.update(completed_at=LONG_AGO)
    clock.now = 122.0
    with django_assert_num_queries(3):
        runner.run_due(timezone.now())
    assert ran == [*"abcdeabcde"]
    assert all(lease.token == "" and lease.completed_at > LONG_AGO for lease in Lease.objects.all())
    with django_assert_num_queries(0):
        runner.run_due(timezone.now())


def test_a_long_step_leaves_the_next_one_to_a_loop_that_claimed_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, ran = Clock(monkeypatch), list[str]()

    def take_long(_: datetime) -> None:
        clock.now += steps.LEASE_SECONDS + 1
        Lease.objects.filter(name="step:taken").update(token="of-another")

    late = [LoopStep(name, lambda _, name=name: ran.append(name), 60) for name in ("taken", "kept")]
    declare(monkeypatch, LoopStep("long", take_long, 60), *late)
    runner = StepRunner()
    clock.now = 61.0
    runner.run_due(timezone.now())
    assert ran == ["kept"]
    assert set(Lease.objects.exclude(token="").values_list("name", flat=True)) == {"step:taken"}


def test_the_leases_of_a_step_that_runs_are_extended_and_those_of_one_that_hangs_are_not_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, extended, counts = Clock(monkeypatch), list[tuple[set[str], int]](), list[int]()

    def hang(_: datetime) -> None:
        for thread in threading.enumerate():
            if thread.name == steps.RENEWAL:
                thread.join()
        counts.append(len(extended))

    monkeypatch.setattr(steps, "RENEW_SECONDS", 0.001)

    def extend_all(names: Collection[str], token: str, seconds: int) -> int:
        extended.append((set(names), seconds))
        return len(names)

    monkeypatch.setattr(steps, "extend_all", extend_all)
    declare(monkeypatch, LoopStep("hangs", hang, 60), LoopStep("next", lambda _: None, 60))
    runner = StepRunner()
    clock.now = 61.0
    runner.run_due(timezone.now())
    leases = {"step:hangs", "step:next"}
    assert counts == [steps.RENEWALS]
    assert extended[: steps.RENEWALS] == [(leases, steps.LEASE_SECONDS)] * steps.RENEWALS
    assert steps.RENEWALS * 5 + steps.LEASE_SECONDS == 60
    assert not Lease.objects.exclude(token="").exists()


def test_a_step_whose_lease_another_process_has_does_not_run_after_the_others_were_extended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after the process was suspended, or the database did not answer, for longer than a lease."""
    clock, ran = Clock(monkeypatch), list[str]()

    def extend_all(names: Collection[str], token: str, seconds: int) -> int:
        return len(names) - 1

    def take_long(_: datetime) -> None:
        clock.now += steps.LEASE_SECONDS + 1
        Lease.objects.filter(name="step:taken").update(token="of-another")
        for thread in threading.enumerate():
            if thread.name == steps.RENEWAL:
                thread.join()

    late = [LoopStep(name, lambda _, name=name: ran.append(name), 60) for name in ("taken", "kept")]
    declare(monkeypatch, LoopStep("long", take_long, 60), *late)
    monkeypatch.setattr(steps, "RENEW_SECONDS", 0.001)
    monkeypatch.setattr(steps, "extend_all", extend_all)
    runner = StepRunner()
    clock.now = 61.0
    runner.run_due(timezone.now())
    assert ran == ["kept"]


def test_leases_are_extended_again_after_the_database_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tries = Clock(monkeypatch), list[int]()

    def extend_all(names: Collection[str], token: str, seconds: int) -> int:
        tries.append(len(names))
        if len(tries) == 1:
            raise OperationalError("no answer")
        return len(names)

    def wait(_: datetime) -> None:
        wait_until(lambda: len(tries) > 1, what="another try")

    monkeypatch.setattr(steps, "RENEW_SECONDS", 0.001)
    monkeypatch.setattr(steps, "extend_all", extend_all)
    declare(monkeypatch, LoopStep("waits", wait, 60))
    runner = StepRunner()
    clock.now = 61.0
    runner.run_due(timezone.now())
    assert tries[:2] == [1, 1]


BLOCKED = """
import sys, threading
import django
from django.db import connection
from django.utils import timezone

django.setup()
connection.settings_dict["NAME"] = sys.argv[1]
from controlplane.loop import steps

steps.LEASE_SECONDS, steps.RENEW_SECONDS = 2, 0.05


def block(now):
    print("blocked", flush=True)
    threading.Event().wait()


step = steps.LoopStep("blocked", block, 0)
steps.declared_steps = lambda: [step]
steps.StepRunner().run_due(timezone.now())
"""


@pytest.mark.django_db(transaction=True)
def test_a_killed_process_leaves_its_step_to_another_machine_within_a_lease() -> None:
    name = str(connection.settings_dict["NAME"])
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKED, name], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "blocked\n"
            first = Lease.objects.get(name="step:blocked").expires_at
            wait_until(lambda: Lease.objects.get(name="step:blocked").expires_at > first, what="a renewal")
        finally:
            process.kill()
    held = Lease.objects.annotate(now=Now()).get(name="step:blocked")
    assert held.token
    assert held.expires_at <= held.now + timedelta(seconds=2)
    wait_until(lambda: claim("step:blocked", 10), what="the end of the killed process's lease")


def test_a_failing_step_releases_its_lease_as_not_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    declare(monkeypatch, LoopStep("poison", lambda _: 1 // 0, 60), LoopStep("good", lambda _: None, 60))
    runner = StepRunner()
    clock.now = 61.0
    runner.run_due(timezone.now())
    rows = {lease.name: (lease.token, lease.completed_at is None) for lease in Lease.objects.all()}
    assert rows == {"step:poison": ("", True), "step:good": ("", False)}


def test_old_rows_are_cleared_away_once_a_minute() -> None:
    assert {step.name: step.every_seconds for step in declared_steps()}["rollup"] == 60
