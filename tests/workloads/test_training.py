"""The loop that trains one network on a fixed number of ranks."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from controlplane.logstore.progress import parse_progress
from tests.waiting import patience
from tests.workloads.conftest import RanksStory
from tests.workloads.ranks import Line
from workloads.common import checkpoint
from workloads.common.allreduce_time import covered
from workloads.common.devices import take_device
from workloads.common.distributed import joined_ranks
from workloads.common.finite import LossNotFinite
from workloads.common.optimizers import PlainAdamW, PlainSGD
from workloads.common.schedule import cosine, polynomial
from workloads.common.stopping import EXIT_CODE, StopRequest
from workloads.common.training import Batch, Plan, Training
from workloads.lane_detection.data import LISTS
from workloads.quickstart import training as quickstart
from workloads.quickstart.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def kept_signal():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(
    folder: Path, epochs: int, *, stop_at: int | None = None, model: str = "line", batch: int = 4
) -> tuple[int, Line, Training]:
    """Train alone; `stop_at`: the step in which SIGTERM comes."""
    use = take_device()
    stop = StopRequest()
    with joined_ranks(use.device) as rank_info:
        program = Line(rank_info, model=model)
        training = Training(program, Plan(epochs, batch, folder, checkpoint_steps=2), use, rank_info)
        training.resume()
        plain = program.loss

        def loss(net, batch):
            if training.at.step + 1 == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return plain(net, batch)

        program.loss = loss
        return training.run(stop), program, training


def test_a_stopped_training_goes_on_at_the_next_step_as_if_it_had_not_stopped(tmp_path: Path, capsys):
    code, whole, _ = run(tmp_path / "whole", 3)
    assert code == 0
    code, first, stopped = run(tmp_path / "parts", 3, stop_at=5)
    assert (code, stopped.at.step, stopped.at.epoch, stopped.at.samples) == (EXIT_CODE, 5, 1, 8)
    code, second, training = run(tmp_path / "parts", 3)
    assert (code, training.at.step) == (0, 9)
    assert first.data.read + second.data.read == whole.data.read
    assert second.net.state_dict()["weight"].item() == whole.net.state_dict()["weight"].item()
    printed = capsys.readouterr().out
    assert "stopping: saved step 5" in printed
    assert "resumed at step 5 of 9" in printed
    last = [found for line in printed.splitlines() if (found := parse_progress(line, 0))][-1]
    assert (last.epoch, last.epochs, last.step, last.total_steps) == (3, 3, 9, 9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_fails_the_training_and_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
):
    plain, steps = Line.loss, iter(range(1, 100))

    def loss(self: Line, net: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        found, accuracy = plain(self, net, batch)
        return (found * value if next(steps) == 4 else found), accuracy

    monkeypatch.setattr(Line, "loss", loss)
    with pytest.raises(LossNotFinite, match=rf"at step 4 the loss is {value}"):
        run(tmp_path, 3)
    found = checkpoint.load_latest(tmp_path, "line")
    assert found is not None
    assert found[0] == 3


def test_weights_that_an_update_made_no_numbers_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The loss of that step was a number: it is that before the update."""
    monkeypatch.setattr(Line, "learning_rate", lambda self, step, *_: math.inf if step == 5 else 0.1)
    with pytest.raises(LossNotFinite, match="at step 6 the weights are no numbers"):
        run(tmp_path, 3)
    found = checkpoint.load_latest(tmp_path, "line")
    assert found is not None
    assert found[0] == 4


def test_the_quickstart_saves_no_such_weights_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quickstart.checkpoint, "checkpoint_dir", lambda: tmp_path)
    use = take_device()
    pictures, digits = torch.rand(4, 1, 8, 8), torch.arange(4)
    with joined_ranks(use.device) as rank_info:
        settings = Settings(epochs=1, batch_size=4, learning_rate=math.inf)
        training = quickstart.Training(
            settings, quickstart.Digits(pictures, digits, pictures, digits), use, rank_info
        )
        with pytest.raises(LossNotFinite, match="at step 1 the weights are no numbers"):
            training.run(StopRequest())
    assert checkpoint.load_latest(tmp_path, quickstart.MODEL) is None


def test_a_rank_that_ends_for_its_loss_gives_the_reason_to_its_launcher(tmp_path: Path):
    program = "from workloads.common.finite import check_loss; check_loss(float('nan'), 7)"
    (tmp_path / "diverging.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "TRAINYARD_RANKS": "2", "PATH": ""}
    command = [sys.executable, "-m", "workloads.common.launch", "diverging"]
    ran = subprocess.run(command, capture_output=True, text=True, env=env, timeout=patience(60), check=False)
    assert ran.returncode == 1
    assert "failed first, with exit code 1: LossNotFinite: at step 7 the loss is nan." in ran.stdout


def test_what_is_left_of_an_epoch_and_fills_no_step_of_larger_batches_is_left_out(tmp_path: Path):
    """As the tail of any epoch. The training would wait for a step without end."""
    run(tmp_path, 3, stop_at=5)
    code, program, training = run(tmp_path, 3, batch=6)
    assert (code, training.at.epoch, training.at.step) == (0, 3, 7)
    assert sorted(program.data.read) == list(range(12))


def test_every_sample_comes_once_in_each_epoch_in_another_order(tmp_path: Path):
    _, program, _ = run(tmp_path, 2)
    first, second = program.data.read[:12], program.data.read[12:]
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


def test_the_checkpoint_of_another_model_is_refused_and_left(tmp_path: Path):
    run(tmp_path, 1, model="resnet50")
    with pytest.raises(checkpoint.OtherModel, match="is of resnet50, not of line"):
        run(tmp_path, 1)
    assert checkpoint.load_latest(tmp_path, "resnet50")[0] == 3
    with pytest.raises(checkpoint.OtherModel, match="is of resnet50, not of a program that names none"):
        checkpoint.load_latest(tmp_path)


def test_a_checkpoint_that_names_no_model_is_used(tmp_path: Path):
    run(tmp_path, 1, model="")
    assert checkpoint.load_latest(tmp_path, "line")[0] == 3


def test_a_truncated_checkpoint_is_refused_by_its_manifest(tmp_path: Path, capsys):
    run(tmp_path, 1)
    newest, before = sorted(tmp_path.glob("step-*"), reverse=True)
    os.truncate(newest / "state.pt", 100)
    with pytest.raises(checkpoint.CheckpointRefused, match="is damaged: 100 bytes of"):
        checkpoint.load(newest, "line")
    assert checkpoint.load_latest(tmp_path, "line")[0] == int(before.name.removeprefix("step-"))
    assert f"{newest} is damaged" in capsys.readouterr().out


def test_too_few_samples_for_one_step_are_an_error(tmp_path: Path):
    use = take_device()
    with (
        joined_ranks(use.device) as rank_info,
        pytest.raises(ValueError, match="3 samples do not fill a step"),
    ):
        Training(Line(rank_info, samples=3), Plan(1, 4, tmp_path), use, rank_info)


@pytest.mark.parametrize(
    ("plain", "torchs", "settings"),
    [
        (PlainSGD, torch.optim.SGD, {"momentum": 0.9}),
        (PlainSGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
        (PlainAdamW, torch.optim.AdamW, {}),
    ],
)
def test_optimizers_without_the_compiler_make_the_same_steps(plain, torchs, settings):
    found = []
    for kind in (plain, torchs):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = kind([weight], lr=0.1, **settings)
        for step in range(4):
            optimizer.zero_grad()
            torch.autograd.backward((weight * torch.arange(3.0) * (step + 1)).sum())
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        found.append([*weight.tolist(), weight.requires_grad, optimizer.state_dict()["param_groups"]])
    assert found[0] == found[1]


def test_learning_rates_warm_up_and_end_near_nothing():
    for schedule in (polynomial, cosine):
        rates = [schedule(step, 1000) for step in range(1000)]
        assert rates[0] == pytest.approx(1 / 20, rel=0.01)
        assert max(rates) == pytest.approx(1, abs=0.05)
        assert 0 < rates[-1] < 0.01
    assert polynomial(0, 3) == 1.0


def test_short_trainings_start_with_small_steps():
    """At once with the whole rate, lane detection diverged to NaN in 4 of 10 steps of 6 pictures."""
    assert [round(polynomial(step, 10), 2) for step in range(5)] == [0.2, 0.36, 0.49, 0.58, 0.63]


def test_overlapping_spans_count_once():
    assert covered([(0, 2), (1, 3), (5, 6), (5.5, 5.7)]) == 4
    assert covered([]) == 0


@pytest.mark.slow
def test_ranks_train_together_and_one_that_never_joins_is_named(ranks_story: RanksStory):
    story = ranks_story.told
    first, second = story["trained"]
    assert first["code"] == second["code"] == 0
    assert first["weights"] == second["weights"]
    assert first["step"] == 4
    assert sorted(first["read"] + second["read"]) == sorted([*range(12)] * 2)
    progress = json.loads(next(line for line in reversed(ranks_story.printed) if line.startswith("{")))
    assert progress["workers"] == 2
    assert 0 < progress["allreduce_share"] <= 1
    assert progress["samples_per_second"] > 0
    # of three, ranks 1 and 2 do not come
    assert "Of 3 ranks these have not joined" in story["alone"][0]
    assert story["alone"][0].endswith("s: 1, 2.")


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_refused_on_every_rank(ranks_story: RanksStory):
    """The others waited for rank 0, which had left, and failed with an error of the process group."""
    first, second = ranks_story.told["of_another_model"]
    assert "is of line, not of curve" in first
    assert first == second


def test_a_stop_of_the_whole_process_group_saves_although_processes_read_data(tmp_path: Path) -> None:
    """The local engine's stop: SIGTERM ended the processes that read data, and the training failed without saving."""
    settings = {"MODEL": "small", "EPOCHS": "1000", "BATCH_SIZE": "4", "USE_WORKERS": "true", "CLIPS": "8"}
    data = {"DATA_DIR": str(tmp_path / "lanes"), "TRAINYARD_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    env = {**os.environ, **settings, **data, "OMP_NUM_THREADS": "1"}
    prepare, train = (
        [sys.executable, "-m", f"workloads.lane_detection.{name}"] for name in ("prepare", "train")
    )
    subprocess.run(prepare, check=True, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    # An epoch outlasts the test, so that the processes of its beginning are still there.
    listed = tmp_path / "lanes" / LISTS / "train.txt"
    listed.write_text(listed.read_text() * 1000)

    with subprocess.Popen(train, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        steps = (line for line in process.stdout if '"step"' in line)
        next(steps)
        for reader in psutil.Process(process.pid).children():
            reader.terminate()
        for _ in range(2):
            next(steps)
        process.terminate()
        last = process.stdout.read()

    assert process.returncode == EXIT_CODE
    assert "stopping: saved step" in last
