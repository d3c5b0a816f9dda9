"""Steps that apps declare: each runs when it is due, in one loop, and a failing one stops no other."""

from datetime import datetime
from types import SimpleNamespace

import pytest
from django.utils import timezone

from controlplane.loop import steps
from controlplane.loop.claims import claim
from controlplane.loop.steps import LoopStep, StepRunner, declared_steps

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
    monkeypatch.setattr(steps, "is_fresh", lambda *_: False)
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


def test_a_step_that_another_loop_is_at_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = Clock(monkeypatch), list[str]()
    declare(monkeypatch, LoopStep("held", lambda _: ran.append("held"), 60))
    runner = StepRunner()
    assert claim("step:held", 60)
    clock.now = 61.0
    runner.run_due(timezone.now())
    assert ran == []


def test_old_rows_are_cleared_away_once_a_minute() -> None:
    assert {step.name: step.every_seconds for step in declared_steps()}["rollup"] == 60
