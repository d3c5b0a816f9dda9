"""A training that grows, shrinks and loses workers, in real processes: no step is lost, no sample is seen twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import distributed
from torch._C._distributed_c10d import HashStore

from tests.waiting import slowness
from workloads.common import elastic, groups
from workloads.common.membership import Mailbox, Member, Membership

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/workloads/elastic_run.py saw."""
    slow = slowness()
    ran = subprocess.run(
        [sys.executable, "-m", "tests.workloads.elastic_run", str(tmp_path_factory.mktemp("elastic"))],
        cwd=REPOSITORY,
        env={
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            "TRAINYARD_ELASTIC_FORM_SECONDS": str(5 * slow),
            "TRAINYARD_ELASTIC_FROZEN_SECONDS": str(20 * slow),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600 * slow,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def switches(story: dict[str, Any]) -> list[dict[str, Any]]:
    return [switch for status in story["statuses"].values() for switch in status["switches"]]


def test_planned_resizes_lose_and_repeat_no_step(told: dict[str, Any]):
    found = switches(told["planned"])
    assert len({switch["generation"] for switch in found}) == 7
    assert all(switch["is_planned"] for switch in found)
    assert {(one["lost_steps"], one["repeated_steps"], one["interrupted_steps"]) for one in found} == {
        (0, 0, 0)
    }


def test_all_members_switch_at_the_same_step_to_the_same_world(told: dict[str, Any]):
    for story in (told["planned"], told["failures"]):
        worlds: dict[int, set[tuple[int, int]]] = {}
        for switch in switches(story):
            worlds.setdefault(switch["generation"], set()).add((switch["step"], switch["workers"]))
        assert all(len(seen) == 1 for seen in worlds.values()), worlds


def test_every_sample_comes_once_per_epoch_over_random_resizes_and_kills(told: dict[str, Any]):
    for story in (told["planned"], told["failures"]):
        furthest = max(story["statuses"].values(), key=lambda status: status["step"])
        assert furthest["epochs_done"] >= 1
        assert furthest["epochs_exact"] == furthest["epochs_done"]


def test_a_collective_call_that_does_not_end_is_given_up_when_a_member_is_declared_lost(told: dict[str, Any]):
    """gloo can miss that the connection to a dead member is closed. The call then lasts for its limit of 60 s."""
    pauses = [one["pause_seconds"] for one in switches(told["stuck"]) if one["generation"] == 2]
    assert len(pauses) == 2
    assert max(pauses) < 55
    assert {told["stuck"]["exit_codes"][number] for number in ("0", "1")} == {143}


def test_a_leaver_that_dies_in_its_last_step_does_not_hold_up_the_others(told: dict[str, Any]):
    found = switches(told["abandoned"])
    assert max(one["pause_seconds"] for one in found) < 55
    assert {one["lost_steps"] for one in found} == {0}


def test_a_member_that_cannot_join_a_generation_does_not_hold_up_the_others(told: dict[str, Any]):
    """They waited for it in their group: for ever where it had not arrived, else for the limit of a call, 60 s."""
    found = switches(told["astray"])
    assert max(one["pause_seconds"] for one in found) < 55
    assert max(one["generation"] for one in found) >= 5
    assert {(one["lost_steps"], one["repeated_steps"]) for one in found} == {(0, 0)}


def test_a_member_that_never_reaches_the_others_asks_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each generation is a row and an event."""
    owner, asked, clock = Mailbox(tmp_path), [0.0], SimpleNamespace(now=0.0)
    epochs = SimpleNamespace(done=0, exact=0)
    world: Any = SimpleNamespace(_stop=False, generation=0, step=0, epochs=epochs, _stepped_at=0.0)

    def fail(_self: Any, found: Membership) -> bool:
        world.generation = found.generation
        raise OSError("timed out")

    def sleep(_seconds: float) -> None:
        clock.now += 0.25
        newest = owner.membership()
        if member._status.is_stuck and newest and newest.generation == world.generation:
            asked.append(clock.now)
            owner.publish(Membership(world.generation + 1, (Member(0, ""),)))
            world._stop = len(asked) > 9

    monkeypatch.setattr(elastic._Membered, "_beat", lambda _self: None)
    monkeypatch.setattr(elastic._Membered, "_form", fail)
    monkeypatch.setattr(
        elastic, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep, time=lambda: 0.0)
    )
    monkeypatch.delenv("TRAINYARD_RANK", raising=False)
    member = elastic._Membered(world, tmp_path)
    owner.publish(Membership(1, (Member(0, ""),)))
    member.switch(is_planned=True)
    waits = [later - earlier for earlier, later in pairwise(asked)]
    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, 64, 64, 64], abs=0.6)


def test_who_leaves_by_plan_ends_with_0_and_who_is_stopped_with_143(told: dict[str, Any]):
    codes = told["planned"]["exit_codes"]
    left = {number for number, status in told["planned"]["statuses"].items() if status["generation"] < 7}
    assert {codes[number] for number in left} == {0}
    assert {codes[number] for number in set(codes) - left} == {143}


def test_survivors_of_a_kill_go_on_in_process_also_when_the_store_was_hosted_there(told: dict[str, Any]):
    story = told["failures"]
    assert story["exit_codes"]["0"] == story["exit_codes"]["2"] == -9
    assert story["exit_codes"]["1"] == story["exit_codes"]["3"] == 143
    mine = [one for one in story["statuses"]["1"]["switches"] if not one["is_planned"]]
    assert [(one["lost_steps"], one["interrupted_steps"]) for one in mine[:2]] == [(0, 1), (0, 1)]
    assert [one["workers"] for one in mine[:2]] == [3, 2]


def test_a_newcomer_that_dies_before_it_joins_is_left_behind(told: dict[str, Any]):
    story = told["failures"]
    assert story["exit_codes"]["5"] == -9
    assert story["statuses"]["5"]["generation"] == 0
    assert [one["workers"] for one in story["statuses"]["1"]["switches"]][-1] == 3


def test_a_run_without_any_change_ends_by_itself(told: dict[str, Any]):
    story = told["whole"]
    assert set(story["exit_codes"].values()) == {0}
    assert {(one["epochs_done"], one["epochs_exact"]) for one in story["statuses"].values()} == {(3, 3)}


def test_a_group_that_could_not_be_built_does_not_change_the_name_of_the_next():
    """Peers whose first attempt succeeded would wait under another name."""
    module = distributed.distributed_c10d
    with pytest.raises(distributed.DistError):
        distributed.init_process_group(
            "gloo", store=HashStore(), rank=0, world_size=2, timeout=timedelta(seconds=0.05)
        )
    groups.dissolve()
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        assert module._get_default_group().group_name == "0"
    finally:
        groups.dissolve()
