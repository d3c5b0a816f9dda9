"""Every sample exactly once per epoch, and what policies make of the number of workers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from workloads.common.membership import Mailbox, Member, Membership, Status, Switch
from workloads.common.sampling import (
    CONSTANT_GLOBAL_BATCH,
    LINEAR_LEARNING_RATE,
    RAMP_STEPS,
    Epochs,
    Policy,
    digest_of,
)


def complete(epochs: Epochs, policy: Policy, workers: int) -> list[int]:
    """One step of so many workers; returns the samples that they saw."""
    batch = policy.global_batch(workers)
    shares = [epochs.share(rank, workers, batch) for rank in range(workers)]
    epochs.advance(sum(map(len, shares)), sum(map(digest_of, shares)), batch)
    return [int(index) for share in shares for index in share]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", [CONSTANT_GLOBAL_BATCH, LINEAR_LEARNING_RATE])
def test_each_sample_comes_once_per_epoch_whatever_the_world(seed: int, policy: str):
    draw = random.Random(seed)
    samples = draw.randrange(1, 200)
    epochs = Epochs(samples, 3, seed)
    declared = Policy(draw.randrange(1, 9), draw.randrange(1, 5), policy)
    seen: list[list[int]] = [[], [], []]
    while not epochs.is_over:
        at = epochs.epoch
        seen[at] += complete(epochs, declared, draw.randrange(1, 8))
    assert [sorted(indexes) for indexes in seen] == [list(range(samples))] * 3
    assert (epochs.done, epochs.exact) == (3, 3)


def test_an_epoch_that_saw_a_sample_twice_is_not_called_exact():
    epochs = Epochs(8, 1)
    epochs.advance(8, digest_of(torch.tensor([0, 1, 2, 3, 4, 5, 6, 6])), 8)
    assert (epochs.done, epochs.exact) == (1, 0)


def test_a_newcomer_goes_on_where_the_others_are():
    veteran, newcomer, policy = Epochs(100, 2, 7), Epochs(100, 2, 7), Policy(8, 2)
    for _ in range(9):
        complete(veteran, policy, 2)
    newcomer.load(veteran.state())
    assert newcomer.share(1, 3, 16).tolist() == veteran.share(1, 3, 16).tolist()


def test_shares_differ_by_one_sample_at_most_and_may_be_empty_at_the_end():
    epochs = Epochs(5, 1)
    assert [len(epochs.share(rank, 3, 4)) for rank in range(3)] == [2, 1, 1]
    epochs.advance(4, 0, 4)
    assert [len(epochs.share(rank, 3, 4)) for rank in range(3)] == [1, 0, 0]


def test_a_constant_global_batch_keeps_batch_and_learning_rate():
    policy = Policy(16, 2)
    assert [policy.global_batch(workers) for workers in (1, 2, 5)] == [32, 32, 32]
    assert policy.learning_rate_factor(5, 2, 0) == 1.0


def test_a_linear_learning_rate_follows_the_global_batch_over_a_ramp():
    policy = Policy(16, 2, LINEAR_LEARNING_RATE)
    assert [policy.global_batch(workers) for workers in (1, 2, 4)] == [16, 32, 64]
    factors = [policy.learning_rate_factor(4, 2, step) for step in range(RAMP_STEPS + 5)]
    assert factors == sorted(factors)
    assert 1.0 < factors[0] < 1.1
    assert factors[-1] == 2.0


@pytest.mark.parametrize(("batch", "workers", "name"), [(0, 1, "x"), (0, 1, CONSTANT_GLOBAL_BATCH)])
def test_a_policy_that_makes_no_sense_is_refused(batch: int, workers: int, name: str):
    with pytest.raises(ValueError, match=r"must be|is not one of"):
        Policy(batch, workers, name)


def test_a_mailbox_gives_the_newest_generation_and_never_an_older_one(tmp_path: Path):
    box, owner = Mailbox(tmp_path), Mailbox(tmp_path)
    assert box.membership() is None
    for generation in (2, 3, 1):
        owner.publish(Membership(generation, (Member(4, "h:1"), Member(2, "h:2"))))
        found = box.membership()
        assert found is not None
        assert found.generation == max(2, min(3, generation + (generation == 1) * 2))
        assert (found.rank_of(2), found.rank_of(9)) == (1, None)


def test_a_status_is_whole_and_keeps_the_last_switches(tmp_path: Path):
    box, status = Mailbox(tmp_path), Status(3, "127.0.0.1:5")
    status.switches = [Switch(n, n * 10, 2, 1.5, 0.04) for n in range(50)]
    assert box.status() is None
    box.report(status)
    assert box.status() == status
    assert [one.generation for one in status.switches] == list(range(30, 50))
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    assert json.loads((tmp_path / "status.json").read_text())["address"] == "127.0.0.1:5"
