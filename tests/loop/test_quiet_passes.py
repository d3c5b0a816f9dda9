"""What the loop does while nothing is unfinished: counts of statements and of steps, which depend on no machine."""

from dataclasses import replace
from datetime import datetime

import pytest
from django.conf import settings
from django.utils import timezone

from controlplane.engines.memory import MemoryEngine
from controlplane.logstore.reader import log_path
from controlplane.logstore.writer import STDOUT, LogWriter
from controlplane.loop import steps
from controlplane.loop.claims import COLLECT_LEASE
from controlplane.loop.engine_look import have_engines_changed
from controlplane.loop.log_shipping import LogKeeper
from controlplane.loop.period import BUSY, QUIET_WORK_SECONDS, Period
from controlplane.loop.project_sync import sync_projects_once
from controlplane.loop.runner import Runner
from controlplane.loop.steps import LoopStep, StepRunner, declared_steps
from controlplane.loop.telemetry_step import collect_once
from controlplane.models import Cluster, Device, Lease
from jobs.models import Pod
from tests.builders import make_cluster, make_job, make_project
from tests.engines import give_engine
from tests.loop.test_steps import Clock, declare

pytestmark = pytest.mark.django_db


def test_clusters_without_objects_of_projects_cost_one_statement(plant, django_assert_num_queries) -> None:
    Cluster.objects.update(engine="local")
    with django_assert_num_queries(1):
        assert sync_projects_once()
    assert not Lease.objects.exists()


def test_engines_that_write_logs_themselves_cost_one_statement(plant, django_assert_num_queries) -> None:
    keeper = LogKeeper()
    with django_assert_num_queries(1):
        assert keeper.look(plant.clock())
    assert not Lease.objects.exists()


def test_a_look_at_the_engines_takes_one_statement_and_finds_what_changed(
    plant, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries
) -> None:
    assert have_engines_changed(), "the first look"
    with django_assert_num_queries(1):
        assert not have_engines_changed()
    closed = tuple(replace(node, is_closed=True) for node in plant.engine.nodes())
    monkeypatch.setattr(plant.engine, "nodes", lambda: closed)
    assert have_engines_changed(), "other nodes"
    assert not have_engines_changed()
    plant.engine.faults.is_unreachable = True
    assert have_engines_changed(), "no answer"
    plant.engine.faults.is_unreachable = False
    assert have_engines_changed(), "an answer again"
    assert not have_engines_changed()
    monkeypatch.undo()
    make_job(make_project(), command=["sleep", "60"])
    plant.settle()
    assert have_engines_changed(), "a pod"
    assert have_engines_changed(), "as long as it is there"


def test_an_engine_that_fails_hides_no_change_of_another(plant, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_cluster("other", nodes=0)
    give_engine(other, MemoryEngine(other.settings, clock=plant.clock))
    have_engines_changed()
    monkeypatch.setattr(plant.engine, "pods", lambda: 1 // 0)
    assert have_engines_changed()
    monkeypatch.undo()
    have_engines_changed()
    assert not have_engines_changed()
    give_engine(other, None)


def test_clusters_at_rest_are_sampled_once_a_minute_and_their_devices_are_read_at_every_pass(
    plant, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries
) -> None:
    def collect(seconds: float) -> bool:
        plant.clock.advance(seconds)
        before = Lease.objects.filter(name=COLLECT_LEASE).values_list("completed_at").first()
        assert collect_once(plant.clock(), is_quiet=True)
        return before != Lease.objects.filter(name=COLLECT_LEASE).values_list("completed_at").first()

    assert collect(0), "the first collection of this process"
    with django_assert_num_queries(1):
        assert collect_once(plant.clock(), is_quiet=True)
    assert [collect(15), collect(15), collect(15), collect(15)] == [False, False, False, True]
    reports = tuple(replace(report, utilization=0.5) for report in plant.engine.usage())
    monkeypatch.setattr(plant.engine, "usage", lambda: reports)
    assert collect(15), "a device that another program uses"
    assert Device.objects.filter(utilization=0.5).count() == len(reports)
    assert not collect(15)
    make_cluster("other", nodes=0)
    assert collect(1), "another cluster"


def test_an_engine_that_cannot_be_opened_keeps_no_logs_from_being_copied(
    plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.loop.log_shipping.engine_for", lambda _: 1 // 0)
    assert LogKeeper().look(plant.clock())


def test_the_last_lines_of_a_pod_are_read_at_rest(plant) -> None:
    job = make_job(make_project(), command=["sleep", "5"])
    plant.settle()
    collect_once(plant.clock())
    pod = Pod.objects.get(job=job)
    plant.in_seconds(6)
    collect_once(plant.clock())
    writer = LogWriter(str(log_path(settings.LOG_DIR, str(job.pk), 1, pod.rank)))
    writer.feed(STDOUT, b'{"trainyard": 1, "step": 7}\n')
    writer.close()
    collect_once(plant.clock(), is_quiet=True)
    job.refresh_from_db()
    assert (job.state, job.progress["step"]) == ("succeeded", 7)


def test_a_quiet_step_runs_once_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = Clock(monkeypatch), list[float]()
    declare(monkeypatch, LoopStep("often", lambda _: ran.append(clock.now), 2))
    runner = StepRunner()
    monkeypatch.setattr(steps, "_completions", list)
    changes = {5: BUSY, 10: 7, 25: 7, 40: 8, 55: 8, 60: 8, 75: 8, 119: 8, 120: 8}
    for clock.now, count in changes.items():
        runner.run_due(timezone.now(), count)
    assert ran == [5, 10, 40, 60, 60 + QUIET_WORK_SECONDS]


def test_no_pod_is_started_before_the_work_at_the_start_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, faults = make_cluster(), [OSError("gone")]

    def at_start() -> None:
        if faults:
            raise faults.pop()

    declare(
        monkeypatch,
        LoopStep("none", lambda _: None, 2),
        LoopStep("first", lambda _: None, 2, at_start=at_start),
    )
    monkeypatch.setattr("controlplane.loop.runner.clusters_with_work", lambda: [cluster.pk])
    monkeypatch.setattr(Runner, "_spawn", lambda *_, **__: None)
    loop = Runner(has_broker=False)
    with pytest.raises(OSError, match="gone"):
        loop._cycle()
    loop._sync_pools()
    assert loop._all_pools() == []
    loop._prepare()
    assert loop._pools_wakeup.is_set()
    loop._sync_pools()
    assert loop._all_pools() != []


def test_quiet_steps_of_all_periods_run_in_one_pass_a_minute(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries
) -> None:
    clock, ran = Clock(monkeypatch), list[str]()
    periods = {"a": 2, "b": 15, "c": 30, "d": 60}
    declare(
        monkeypatch,
        *(LoopStep(name, lambda _, name=name: ran.append(name), every) for name, every in periods.items()),
    )
    runner = StepRunner()
    monkeypatch.setattr(steps, "_completions", list)
    for clock.now in (2.0, 17.0, 32.0, 47.0, 62.0):
        runner.run_due(timezone.now(), 7)
    del ran[:]
    for clock.now in (77.0, 92.0, 107.0, 119.0):
        with django_assert_num_queries(0):
            runner.run_due(timezone.now(), 7)
    clock.now = 120.0
    runner.run_due(timezone.now(), 7)
    assert ran == [*"abcd"]


def test_a_quiet_step_that_failed_runs_again_at_its_own_period(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = Clock(monkeypatch), list[float]()

    def fail_at_first(_: datetime) -> None:
        ran.append(clock.now)
        assert clock.now > 10

    declare(monkeypatch, LoopStep("poison", fail_at_first, 2))
    runner = StepRunner()
    monkeypatch.setattr(steps, "_completions", list)
    for clock.now in (10, 25, 40):
        runner.run_due(timezone.now(), 7)
    assert ran == [10, 25]


def test_a_step_whose_work_comes_with_time_runs_when_it_has_any(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries
) -> None:
    clock, ran = Clock(monkeypatch), list[float]()
    declare(monkeypatch, LoopStep("timed", lambda _: ran.append(clock.now), 15, lambda _: clock.now == 45))
    runner = StepRunner()
    for clock.now in (15, 30):
        with django_assert_num_queries(0):
            runner.run_due(timezone.now(), 7)
    for clock.now in (45, 60):
        runner.run_due(timezone.now(), 7)
    assert ran == [45]


def test_a_step_that_cannot_say_whether_it_has_work_runs_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, ran = Clock(monkeypatch), list[str]()
    first = LoopStep("first", lambda _: ran.append("first"), 15, lambda _: 1 // 0)
    declare(monkeypatch, first, LoopStep("second", lambda _: ran.append("second"), 15))
    runner = StepRunner()
    clock.now = 15.0
    runner.run_due(timezone.now())
    assert ran == ["first", "second"]


def test_a_quiet_pass_of_the_steps_takes_two_statements(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries
) -> None:
    """Whether a snapshot of a schedule is due, and whether a cluster has claims: both come without an event."""
    clock = Clock(monkeypatch)
    runner = StepRunner()
    for clock.now in (4021, 4036):
        runner.run_due(timezone.now(), 7)
    for clock.now in (4051, 4066):
        with django_assert_num_queries(2):
            runner.run_due(timezone.now(), 7)
    timed = {step.name for step in declared_steps() if step.has_work}
    assert timed == {"claims", "snapshot-schedules"}


def test_the_period_counts_changes_while_nothing_is_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.loop.period.is_quiet", lambda: True)
    monkeypatch.setattr("controlplane.loop.period.LINGER_SECONDS", 0.0)
    pace = Period()
    assert pace.changes == BUSY
    pace.settle(0)
    first = pace.changes
    pace.rouse()
    assert pace.changes == BUSY
    pace.settle(0)
    assert pace.changes > first
