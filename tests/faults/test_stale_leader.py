"""A leader that slept past its claim wakes up in the middle of an effect that another has carried out meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines.local.engine import LocalEngine
from tests.contract.harness import SETTINGS, EngineCase, make_case


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path)
    yield case
    case.close()


def test_a_pod_that_ran_and_was_forgotten_never_runs_again(case: EngineCase, tmp_path: Path):
    spec = case.start("sh", "-c", f"echo ran >> {tmp_path}/runs")
    case.wait_end(spec)
    case.engine.forget(spec.name)
    LocalEngine(SETTINGS, tmp_path).start(spec)  # the stale leader's own engine
    assert case.report(spec) is None
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_start_asleep_after_its_look_at_the_pod_starts_nothing(
    case: EngineCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stale, spec = LocalEngine(SETTINGS, tmp_path), case.spec("sh", "-c", f"echo ran >> {tmp_path}/runs")
    prepare = stale._prepare

    def sleep_while_another_does_it(*args):
        case.engine.start(spec)
        case.wait_end(spec)
        case.engine.forget(spec.name)
        return prepare(*args)

    monkeypatch.setattr(stale, "_prepare", sleep_while_another_does_it)
    stale.start(spec)
    assert case.report(spec) is None
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_pod_stopped_before_its_start_and_forgotten_never_runs(case: EngineCase, tmp_path: Path):
    spec = case.spec("touch", str(tmp_path / "ran"))
    case.engine.stop(spec.name, 0)
    case.wait_end(spec)
    case.engine.forget(spec.name)
    case.engine.start(spec)
    assert case.report(spec) is None


def test_a_job_that_is_forgotten_leaves_no_marks_of_its_pods(case: EngineCase, tmp_path: Path):
    spec = case.start("true")
    case.wait_end(spec)
    case.engine.forget(spec.name)
    case.engine.forget_job(spec.job_id)
    assert not [path for path in tmp_path.rglob(f"*{spec.job_id}*") if "logs" not in path.parts]


def test_two_hosts_of_the_loop_may_wait_on_one_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    engine = LocalEngine(SETTINGS, tmp_path)
    monkeypatch.setattr(
        "controlplane.engines.local.engine.is_readable",
        lambda _pipe, _timeout_seconds: True,  # and the other host reads it before we do
    )
    assert engine.wait_for_change(1.0)
