"""The quickstart as users run it: an image name on the local engine."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, PodSpec
from controlplane.logstore.progress import Progress, find_progress, latest_progress
from tests.contract.harness import EngineCase, make_case
from tests.waiting import patience, wait_until

pytestmark = pytest.mark.slow  # each run imports torch


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path)
    yield case
    case.close()


def last_progress(case: EngineCase, spec: PodSpec) -> Progress:
    progress = latest_progress(spec.log_path)
    assert progress is not None, case.text(spec)
    return progress


def test_it_trains_and_shows_its_progress(case: EngineCase):
    """With its own command line beside the image's variables."""
    words = ("train.py", "--epochs", "2")
    spec = case.start("python", image="registry/quickstart:1", args=words, env={"BATCH_SIZE": "300"})
    report = case.wait_end(spec, 120)
    assert report.state == base.SUCCEEDED, case.text(spec)
    progress = last_progress(case, spec)
    assert (progress.epoch, progress.epochs, progress.step, progress.total_steps) == (2, 2, 10, 10)
    assert progress.eta_seconds == 0
    assert progress.accuracy > 0.3
    assert progress.loss < 2.3
    assert 0 < progress.gpu_utilization <= 1
    assert progress.gpu_memory_mib > 50
    assert progress.seconds_per_step > 0


def test_workers_share_each_batch_and_stop_together(case: EngineCase):
    devices = tuple(DeviceShare(index, 1000, 32768) for index in (0, 1))
    env = {"EPOCHS": "100000", "BATCH_SIZE": "300"}
    spec = case.start(
        "python", image="quickstart", args=("train.py", "--workers", "2"), env=env, devices=devices
    )
    wait_until(lambda: '"workers": 2' in case.text(spec), 180, "the first progress line")
    assert "started at step 0 of 500000" in case.text(spec)
    case.engine.stop(spec.name, 60)
    report = case.wait_end(spec, 60)
    assert (report.reason, report.exit_code) == (base.STOPPED, 143), case.text(spec)
    assert case.text(spec).count("stopping: saved step-") == 1


def test_a_bad_setting_fails_in_words(case: EngineCase):
    spec = case.start(image="quickstart", env={"BATCH_SIZE": "many"})
    assert case.wait_end(spec, 120).reason == base.EXIT_CODE
    assert "--batch-size" in case.text(spec)


def test_a_stopped_run_saves_and_the_next_attempt_goes_on_there(case: EngineCase):
    """Its command is the image's."""
    first = case.start(image="gcr.io/run-ai-demo/quickstart", env={"EPOCHS": "100000"})
    wait_until(lambda: latest_progress(first.log_path), 120, "the first progress line")
    case.engine.stop(first.name, 60)
    report = case.wait_end(first, 60)
    assert (report.reason, report.exit_code) == (base.STOPPED, 143)
    assert "stopping: saved step-" in case.text(first)
    saved_step = int(case.text(first).rpartition("saved step-")[2])
    second = case.start(image="quickstart", env={"EPOCHS": "100000"}, job_id=first.job_id, attempt=2)
    wait_until(lambda: f"resumed at step {saved_step} " in case.text(second), 120, "the second attempt")
    assert last_progress(case, first).checkpoint_step == saved_step

    def steps() -> Progress | None:
        found = find_progress(case.engine.read_logs(second.name, 0, 100).lines)
        return found if found is not None and found.step is not None else None

    page = wait_until(steps, 120, "its progress")
    # Equal at the end of an epoch, until the next step is reported.
    assert page.step >= page.checkpoint_step >= saved_step
    assert page.step > saved_step


def test_the_notebook_image_serves_its_directory_on_the_port(case: EngineCase):
    spec = case.start(image="notebook", ports=(8888,))

    def page() -> bytes | None:
        report = case.report(spec)
        try:
            with urllib.request.urlopen(
                "http://{}:{}/".format(*report.ports[8888]), timeout=patience(5)
            ) as response:
                return response.read()
        except OSError:
            return None

    assert b"Directory listing" in wait_until(page, 30, "the notebook's page")
