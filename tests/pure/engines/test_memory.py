"""The memory engine's script: virtual time and every fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.memory import MemoryEngine
from tests.contract.harness import EngineCase, make_case


@pytest.fixture
def case(tmp_path: Path) -> EngineCase:
    return make_case("memory", tmp_path)


def engine_of(case: EngineCase) -> MemoryEngine:
    assert isinstance(case.engine, MemoryEngine)
    return case.engine


def test_sleep_ends_when_virtual_time_says_so(case: EngineCase):
    spec = case.start("sleep", "60")
    case.advance(59.9)
    assert case.report(spec).state == base.RUNNING
    case.advance(1000)
    report = case.report(spec)
    assert report.state == base.SUCCEEDED
    assert (report.finished_at - report.started_at).total_seconds() == 60


@pytest.mark.parametrize(
    "command",
    [("train",), ("sleep",), ("sleep", "x"), ("sleep", "inf"), ("sleep", "nan"), ("sleep", "1e300")],
)
def test_everything_else_runs_until_it_is_stopped(case: EngineCase, command: tuple[str, ...]):
    spec = case.start(*command)
    case.advance(10**8)
    assert case.report(spec).state == base.RUNNING


def test_an_unreachable_engine_answers_nothing(case: EngineCase):
    spec = case.start("train")
    engine = engine_of(case)
    engine.faults.is_unreachable = True
    for call in (
        engine.nodes, engine.pods, engine.usage, lambda: engine.start(spec), lambda: engine.stop(spec.name, 0),
        lambda: engine.forget(spec.name), lambda: engine.read_logs(spec.name, 0, 1),
    ):  # fmt: skip
        with pytest.raises(EngineUnreachable):
            call()
    engine.faults.is_unreachable = False
    assert case.report(spec).state == base.RUNNING


def test_a_lost_answer_did_happen(case: EngineCase):
    engine = engine_of(case)
    engine.faults.loses_answers = True
    spec = case.spec("train")
    with pytest.raises(EngineUnreachable):
        engine.start(spec)
    assert case.report(spec).state == base.RUNNING
    with pytest.raises(EngineUnreachable):
        engine.stop(spec.name, 0)
    assert case.report(spec).reason == base.STOPPED


def test_slow_stops_take_their_time_but_not_longer_than_the_grace(case: EngineCase):
    engine = engine_of(case)
    engine.faults.stop_delay_seconds = 20
    slow, cut = case.start("train"), case.start("train")
    engine.stop(slow.name, 30)
    engine.stop(cut.name, 5)
    case.advance(5)
    assert not case.report(slow).is_proven_gone
    assert (case.report(cut).exit_code, case.report(cut).is_proven_gone) == (137, True)
    case.advance(15)
    assert (case.report(slow).exit_code, case.report(slow).is_proven_gone) == (143, True)


def test_scripted_ends_refusals_losses_and_nodes(case: EngineCase):
    engine = engine_of(case)
    first, second = case.start("train"), case.start("train")
    engine.finish(first.name, 3, message="Ended with 3.")
    assert (case.report(first).reason, case.report(first).exit_code) == (base.EXIT_CODE, 3)
    engine.lose(second.name)
    assert case.report(second) is None
    engine.faults.start_refusal = ("quota", "No.")
    with pytest.raises(EngineRefused, match="No"):
        case.start("train")
    engine.faults.nodes_down = frozenset({"node-b"})
    assert [node.is_ready for node in engine.nodes()] == [True, False]


def test_usage_and_lines_are_what_the_script_says(case: EngineCase):
    engine = engine_of(case)
    spec = case.start("train")
    engine.set_usage(spec.name, 0.5, 700)
    engine.print_line(spec.name, "hello")
    first = engine.usage()[0]
    assert (first.utilization, first.memory_used_mib, first.pods[0].pod_name) == (0.5, 700, spec.name)
    assert case.text(spec) == "hello\n"
