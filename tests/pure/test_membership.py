"""Who trains in the next generation, and what becomes of a scale operation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.kinds import membership as rules
from jobs.kinds.membership import (
    Answer,
    Candidate,
    MembershipState,
    Operation,
    Worker,
    answer,
    choose_leavers,
    deciding,
)


def training(rank: int, generation: int = 3, **fields: object) -> Worker:
    return Worker(**{"rank": rank, "is_alive": True, "state": "training", "generation": generation, **fields})


def gone(rank: int, exit_code: int = 137, generation: int = 3) -> Worker:
    return Worker(rank, False, "training", generation, exit_code)


def state_of(
    *workers: Worker, operation: Operation | None = None, fewest: int = 1, **fields: object
) -> MembershipState:
    by_rank = {worker.rank: worker for worker in workers}
    members = fields.pop(
        "members", tuple(rank for rank in by_rank if rank not in (operation or Operation()).joining)
    )
    return MembershipState(
        **{
            "generation": 3,
            "members": members,
            "workers": by_rank,
            "fewest": fewest,
            "operation": operation,
            **fields,
        }
    )


def test_the_first_generation_waits_for_the_whole_gang():
    warm, cold = Worker(0, True, "ready"), Worker(1, True)
    assert answer(state_of(warm, cold, generation=0, members=())) == Answer()
    both = state_of(warm, Worker(1, True, "ready"), generation=0, members=())
    assert answer(both) == Answer((0, 1), rules.START)


def test_survivors_go_on_without_one_that_died_while_enough_are_left():
    lost = state_of(training(0), gone(1), training(2, state="broken"))
    assert answer(lost) == Answer((0, 2), rules.LOSS)
    too_few = state_of(training(0), gone(1), training(2), fewest=3)
    assert answer(too_few) == Answer()


def test_survivors_beyond_an_allowed_size_leave():
    lost = state_of(training(0), gone(1), training(2), training(3), sizes=(1, 2, 4))
    assert answer(lost) == Answer((0, 2), rules.LOSS)
    after = state_of(training(0), training(2), training(3), members=(0, 2), sizes=(1, 2, 4))
    assert answer(after) == Answer(stop=(3,))
    too_few = state_of(training(0), gone(1), training(2), training(3), fewest=4, sizes=(4, 8))
    assert answer(too_few) == Answer()


def test_who_lost_one_another_form_again_once_all_say_so():
    some = state_of(training(0, state="broken"), training(1))
    assert answer(some) == Answer()
    every = state_of(training(0, state="broken"), training(1, state="broken"))
    assert answer(every) == Answer((0, 1), rules.REFORM)
    one_asks = state_of(training(0, state="broken", is_stuck=True), training(1))
    assert answer(one_asks) == Answer((0, 1), rules.REFORM)
    earlier = state_of(training(0, state="broken", generation=2, is_stuck=True), training(1, generation=2))
    assert answer(earlier) == Answer()
    already = state_of(training(0, state="broken", generation=2), training(1, state="broken", generation=2))
    assert answer(already) == Answer()


def leaving(*workers: Worker) -> MembershipState:
    """Rank 2 leaves by generation 3, which is published; its peers' call of the last step lasts without it."""
    return state_of(*workers, members=(0, 1), operation=Operation(leaving=(2,), generation=3))


def test_a_leaver_that_dies_in_its_last_step_is_given_up_by_the_others():
    waiting = training(0, generation=2), training(1, generation=2)
    assert answer(leaving(*waiting, gone(2, generation=2))) == Answer((0, 1), rules.REFORM)
    # Said once: the next answer is about the generation that follows from it.
    assert answer(replace(leaving(*waiting, gone(2, generation=2)), generation=4)) == Answer()
    assert answer(leaving(*waiting, replace(gone(2, exit_code=0), state="left"))) == Answer()
    assert answer(leaving(training(0), training(1), gone(2, generation=2))) == Answer(outcome=rules.SUCCEEDED)


def test_a_leaver_that_freezes_in_its_last_step_is_killed():
    waiting = training(0, generation=2), training(1, generation=2)
    assert answer(leaving(*waiting, training(2, generation=2, silent_seconds=11.0))) == Answer(kill=(2,))
    has_left = training(2, state="left", generation=2, silent_seconds=11.0)
    assert answer(leaving(*waiting, has_left)) == Answer()


def test_a_frozen_member_is_killed_and_a_silent_newcomer_is_not():
    frozen = state_of(training(0), training(1, silent_seconds=11.0))
    assert answer(frozen) == Answer(kill=(1,))
    newcomer = training(1, state="", silent_seconds=11.0)
    assert answer(state_of(training(0), newcomer, operation=Operation(joining=(1,)))) == Answer()


def test_newcomers_join_together_once_all_are_warm():
    joining = Operation(joining=(2, 3))
    warm = Worker(2, True, "ready")
    waiting = state_of(training(0), training(1), warm, Worker(3, True), operation=joining)
    assert answer(waiting) == Answer()
    ready = state_of(training(0), training(1), warm, Worker(3, True, "ready"), operation=joining)
    assert answer(ready) == Answer((0, 1, 2, 3), rules.GROW, rules.RUNNING)


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_lost_or_late_newcomer_sends_all_of_them_away(is_dead: bool):
    late = gone(3, 7) if is_dead else Worker(3, True)
    joining = Operation(joining=(2, 3), is_overdue=not is_dead)
    decided = answer(state_of(training(0), training(1), Worker(2, True, "ready"), late, operation=joining))
    assert (decided.members, decided.outcome) == (None, rules.ROLLED_BACK)
    assert decided.stop == ((2,) if is_dead else (2, 3))
    assert ("exit code 7" if is_dead else "not ready to join in time: 3") in decided.message


def test_without_room_in_time_nothing_happened():
    assert answer(state_of(training(0), operation=Operation())) == Answer()
    late = answer(state_of(training(0), operation=Operation(is_overdue=True)))
    assert (late.outcome, late.message) == (rules.ROLLED_BACK, rules.NO_ROOM)


def test_leavers_are_told_first_and_stopped_only_after_they_said_that_they_left():
    asked = Operation(leaving=(1,))
    assert answer(state_of(training(0), training(1), operation=asked)) == Answer(
        (0,), rules.SHRINK, rules.RUNNING
    )
    told = Operation(leaving=(1,), generation=4)
    stays, goes = training(0, 4), training(1)
    between = state_of(stays, goes, members=(0,), generation=4, operation=told)
    assert answer(between) == Answer()
    left = state_of(stays, training(1, state="left"), members=(0,), generation=4, operation=told)
    assert answer(left) == Answer(stop=(1,))
    ended = state_of(stays, gone(1, 0), members=(0,), generation=4, operation=told)
    assert answer(ended) == Answer(outcome=rules.SUCCEEDED)


def test_a_leaver_that_does_not_acknowledge_in_time_is_taken_back():
    late = Operation(leaving=(1,), generation=4, is_overdue=True)
    decided = answer(state_of(training(0), training(1), members=(0,), generation=4, operation=late))
    assert (decided.members, decided.cause) == ((0, 1), rules.ROLL_BACK)
    assert (decided.outcome, decided.stop) == (rules.ROLLED_BACK, ())


def test_one_whose_gpus_are_owed_is_stopped_then():
    late = Operation(leaving=(1,), generation=4, is_overdue=True, is_forced=True)
    decided = answer(state_of(training(0, 4), training(1), members=(0,), generation=4, operation=late))
    assert decided == Answer(stop=(1,))
    ended = answer(state_of(training(0, 4), gone(1), members=(0,), generation=4, operation=late))
    assert (ended.outcome, ended.members) == (rules.SUCCEEDED, None)


def test_no_operation_goes_below_the_minimum():
    decided = answer(state_of(training(0), training(1), operation=Operation(leaving=(1,)), fewest=2))
    assert (decided.outcome, decided.members) == (rules.FAILED, None)


def test_a_training_that_ends_takes_its_newcomers_along():
    over = state_of(gone(0, 0), training(1), Worker(2, True, "ready"), operation=Operation(joining=(2,)))
    decided = answer(over)
    assert (decided.outcome, decided.stop) == (rules.FAILED, (2,))


def test_a_member_that_lost_its_peers_in_the_last_step_does_it_alone():
    assert answer(state_of(gone(0, 0), training(1, state="broken"))) == Answer((1,), rules.LOSS)
    # It waits in the newest generation for a member that had completed the last step before.
    waits = training(1, state="broken", generation=2, is_stuck=True)
    assert answer(state_of(gone(0, 0), waits)) == Answer((1,), rules.LOSS)
    assert answer(state_of(gone(0, 0), waits, training(2, state="left", generation=2))) == Answer()
    assert answer(state_of(gone(0, 0), training(1))) == Answer()


def test_a_worker_that_nothing_waits_for_is_stopped():
    assert answer(state_of(training(0), Worker(1, True, "ready"), members=(0,))) == Answer(stop=(1,))


def test_only_members_decide_an_attempt_and_failures_only_when_too_few_are_left():
    workers = [gone(0, 0), gone(1, 1), training(2)]
    assert deciding(workers, (), 1) == {0, 1, 2}
    assert deciding(workers, (1, 2), 1) == {2}
    assert deciding(workers, (1, 2), 2) == {1, 2}


def test_the_least_harm_leaves_first_and_the_first_member_last():
    nodes = {0: "a", 1: "a", 2: "b", 3: "spot", 4: "a"}
    busy = {0: 0.1, 1: 0.4, 2: 0.1, 3: 0.1, 4: 0.1}
    peers = {"a": 3, "b": 1, "spot": 1}
    candidates = [
        Candidate(rank, node, node == "spot", busy[rank], peers[node]) for rank, node in nodes.items()
    ]
    chosen = choose_leavers(candidates, 5)
    assert [rank for rank, _ in chosen] == [3, 1, 2, 4, 0]
    assert "spot" in chosen[0][1]
    assert chosen[1][1] == "straggler: 400 ms per step, 100 ms is typical"


def test_newcomers_are_sent_away_when_a_loss_makes_their_size_one_that_is_not_allowed():
    ready = [Worker(rank, True, "ready") for rank in (4, 5, 6, 7)]
    growing = Operation(joining=(4, 5, 6, 7))
    found = answer(state_of(training(0), training(2), *ready, operation=growing, sizes=(2, 4, 8)))
    assert (found.outcome, found.stop) == (rules.ROLLED_BACK, (4, 5, 6, 7))


def test_a_loss_before_a_shrink_leaves_an_allowed_size():
    shrinking = Operation(leaving=(4,))
    workers = [training(rank) for rank in (1, 2, 3, 4)]
    found = answer(state_of(*workers, operation=shrinking, sizes=(2, 4, 8)))
    assert found == Answer((1, 2), rules.SHRINK, rules.RUNNING)
