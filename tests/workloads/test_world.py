"""A world of one member in this process: beats after its block, and errors that are not the loss of a peer."""

from __future__ import annotations

import io
import math
import os
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.waiting import wait_until
from workloads.common import checkpoint, elastic, membership
from workloads.common.elastic import World
from workloads.common.finite import LossNotFinite
from workloads.common.membership import Mailbox, Member, Membership
from workloads.common.sampling import CONSTANT_GLOBAL_BATCH, Epochs, Policy
from workloads.elastic import train

INDEXES = torch.arange(2)


class Empty:
    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        del state


class Unlike(Empty):
    """A model that does not have the layers of the others."""

    def load(self, state: dict[str, Any]) -> None:
        raise RuntimeError("size mismatch")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv(membership.DIRECTORY, str(tmp_path))
    monkeypatch.setenv("TRAINYARD_RANK", "0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    Mailbox(tmp_path).publish(Membership(1, (Member(0, ""),)))
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)


def joined():
    return World.joined(torch.device("cpu"), Empty(), Epochs(8, 1, 0), Policy(2, 1, CONSTANT_GLOBAL_BATCH))


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with joined() as made:
        yield made


def parameter(gradient: Tensor) -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.zeros(2))
    made.grad = gradient
    return made


def lost(*_: object, **__: object) -> None:
    raise RuntimeError("Connection closed by peer")


def test_the_process_beats_after_its_block(folder: Path):
    with joined():
        pass
    status = folder / membership.STATUS
    os.utime(status, (0, 0))
    wait_until(lambda: status.stat().st_mtime > 0, what="a beat")


def test_gradients_are_averaged_over_all_samples(world: World):
    mine = parameter(torch.tensor([2.0, 4.0]))
    assert world.average([mine], INDEXES)
    assert mine.grad is not None
    assert mine.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_no_numbers_end_the_program_with_the_step(
    world: World, value: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(elastic._Membered, "recover", lambda *_: pytest.fail("this is no loss of a peer"))
    with pytest.raises(LossNotFinite, match="at step 1 the gradients are no numbers") as error:
        world.average([parameter(torch.tensor([value, 1.0]))], INDEXES)
    assert isinstance(error.value, SystemExit)


def test_gradients_that_cannot_be_sent_are_an_error_of_the_program(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(elastic._Membered, "recover", lambda *_: pytest.fail("this is no loss of a peer"))
    sparse = parameter(torch.tensor([1.0, 0.0]).to_sparse())
    with pytest.raises(RuntimeError):
        world.average([sparse], INDEXES)


def test_a_world_that_breaks_again_at_the_same_step_ends_with_its_error(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(elastic._Membered, "switch", lambda *_, **__: None)
    monkeypatch.setattr(elastic.distributed, "all_reduce", lost)
    mine = parameter(torch.ones(2))
    assert [world.average([mine], INDEXES) for _ in range(3)] == [False] * 3
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        world.average([mine], INDEXES)


def test_nothing_of_the_failed_call_is_held_while_the_world_forms_again(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Its frames hold the process group, whose open connections keep survivors waiting that are not beside the lost
    member, until their collective call times out."""
    held: list[weakref.ref[Empty]] = []
    alive: list[bool] = []

    def closed(*_: object, **__: object) -> None:
        group = Empty()
        held.append(weakref.ref(group))
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(elastic._Membered, "switch", lambda *_, **__: alive.append(held[0]() is not None))
    monkeypatch.setattr(elastic.distributed, "all_reduce", closed)
    assert not world.average([parameter(torch.ones(2))], INDEXES)
    assert alive == [False]


@pytest.mark.parametrize("change", ["step", "size"])
def test_after_progress_or_with_other_members_a_world_may_break_again(
    world: World, monkeypatch: pytest.MonkeyPatch, change: str
):
    monkeypatch.setattr(elastic._Membered, "switch", lambda *_, **__: None)
    monkeypatch.setattr(elastic.distributed, "all_reduce", lost)
    mine = parameter(torch.ones(2))
    for _ in range(6):
        assert not world.average([mine], INDEXES)
        setattr(world, change, getattr(world, change) + 1)


def test_a_state_that_cannot_be_loaded_is_an_error_of_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    packed = io.BytesIO()
    torch.save({"replica": {}}, packed)
    packed.seek(0)

    def given(world: World) -> int:
        world._load(packed)
        return 0

    monkeypatch.setattr(World, "_agree_on_state", given)
    policy = Policy(2, 1, CONSTANT_GLOBAL_BATCH)
    with (
        pytest.raises(elastic.ProgramError, match="size mismatch"),
        World.joined(torch.device("cpu"), Unlike(), Epochs(8, 1, 0), policy),
    ):
        pass


def test_a_resumed_run_keeps_its_global_batch_and_refuses_the_checkpoint_of_another_program(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    saved = tmp_path / "checkpoints"
    monkeypatch.setenv("TRAINYARD_CHECKPOINT_DIR", str(saved))
    monkeypatch.setenv("TRAINYARD_WORLD_SIZE", "1")
    run = train.Training(train.read_settings([]))
    assert run._resume() == (0, 1)
    # It was started with 3 workers.
    world.policy = Policy(16, 3)
    run._save(world)
    assert run._resume() == (0, 3)
    checkpoint.save(saved, 4, {}, "quickstart")
    assert train.main([]) == 1
    assert "is of quickstart, not of elastic" in capsys.readouterr().out
