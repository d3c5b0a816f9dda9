"""How GPUs are divided among elastic jobs: who grows, how far, and who gives workers to whom."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from controlplane.scheduling.division import Claim, after_moves, in_turn, next_size

LINEAR = ((1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0))
FLAT = ((1, 1.0), (2, 1.1), (4, 1.15), (8, 1.2))


def claim(job: str, workers: int = 1, **fields: object) -> Claim:
    return Claim(
        **{"job": job, "workers": workers, "fewest": 1, "most": 8, "left_seconds": 3_600.0, **fields}
    )


def grown(*claims: Claim, free: int) -> dict[str, int]:
    return {one.job: to for one, to in in_turn(claims, free)}


def test_of_equal_jobs_the_smaller_grows_first_and_then_that_with_less_left() -> None:
    assert grown(claim("small"), claim("large", 4), free=1) == {"small": 2}
    assert grown(claim("long", left_seconds=36_000.0), claim("short"), free=1) == {"short": 2}
    assert grown(claim("unknown", left_seconds=None), claim("short"), free=1) == {"short": 2}


def test_free_gpus_are_divided_and_nobody_gets_more_than_it_may_have() -> None:
    assert grown(claim("a"), claim("b"), free=6) == {"a": 4, "b": 4}
    assert grown(claim("a", most=2), claim("b"), free=100) == {"a": 2, "b": 8}
    assert grown(claim("alone"), free=100) == {"alone": 8}
    assert grown(claim("a", sizes=(1, 8)), free=6) == {}
    assert grown(claim("a", shape=(4,)), free=7) == {"a": 2}
    assert grown(claim("without GPUs", shape=(0,)), free=0) == {"without GPUs": 8}


def test_a_job_that_declares_to_gain_nothing_does_not_grow_before_one_that_gains() -> None:
    assert grown(claim("flat", speeds=FLAT), claim("linear", 4, speeds=LINEAR), free=4) == {"linear": 8}
    assert grown(claim("full", 8, speeds=LINEAR, most=16), free=8) == {}


def test_workers_move_to_what_gains_more_by_them() -> None:
    flat, linear = claim("flat", 8, speeds=FLAT, may_shrink=True), claim("linear", speeds=LINEAR)
    assert after_moves([flat, linear], 0) == {"flat": 1, "linear": 8}
    # What came of it moves no further.
    again = [replace(flat, workers=1), replace(linear, workers=8)]
    assert after_moves(again, 0) == {"flat": 1, "linear": 8}
    assert after_moves([claim("a", 4), claim("b", 4)], 0) == {"a": 4, "b": 4}


def test_nothing_moves_that_is_not_worth_it_or_not_allowed() -> None:
    flat, linear = claim("flat", 8, speeds=FLAT), claim("linear", speeds=LINEAR)
    stays = {"flat": 8, "linear": 1}
    assert after_moves([flat, replace(linear, left_seconds=100.0)], 0) == stays
    for giver in (
        replace(flat, may_shrink=False),
        replace(flat, priority=1),
        replace(flat, project="other"),
        replace(flat, fewest=8),
        replace(flat, sizes=(8,)),
    ):
        assert after_moves([giver, linear], 0) == stays
    assert after_moves([replace(flat, shape=(1, 4)), replace(linear, shape=(1, 8))], 0) == stays


def test_without_known_remaining_times_nothing_moves_and_sizes_do_not_change_the_order() -> None:
    """Three jobs of 16, 8 and 8 workers, of which the largest counted as the one with most left."""
    three = [claim(name, has, most=16, left_seconds=None) for name, has in (("a", 16), ("b", 8), ("c", 8))]
    assert after_moves(three, 0) == {"a": 16, "b": 8, "c": 8}
    assert claim("x", 8, left_seconds=None).left_alone == claim("x", 1, left_seconds=None).left_alone


def test_nothing_moves_while_a_job_of_another_project_wants_to_grow() -> None:
    flat, linear = claim("flat", 8, speeds=FLAT), claim("linear", speeds=LINEAR)
    other = claim("other", 1, project="other")
    assert after_moves([flat, linear, other], 0) == {"flat": 8, "linear": 1, "other": 1}
    assert after_moves([flat, linear, replace(other, most=1)], 0) == {"flat": 1, "linear": 8, "other": 1}


@pytest.mark.parametrize("tiny", [1e-200, 5e-324])
def test_speeds_of_any_magnitude_are_compared_without_an_error(tiny: float) -> None:
    strange = claim("strange", 2, speeds=((2, tiny), (10, 2 * tiny)), left_seconds=1e299)
    huge = claim("huge", 2, speeds=((1, 1e-300), (4, 1e308)), left_seconds=0.0)
    assert sum(after_moves([strange, huge, claim("a", 4)], 2).values()) <= 10
    assert len(in_turn([strange, huge, claim("a", 4)], 4)) >= 1


def test_a_job_without_measured_sizes_in_between_has_a_speed_there() -> None:
    measured = claim("a", speeds=((2, 2.0), (8, 4.0)))
    assert measured.speed(2) == 2.0
    assert measured.speed(4) == pytest.approx(8**0.5)
    assert measured.speed(16) == 4.0
    assert measured.speed(1) == pytest.approx(2 / 2**0.75)


@pytest.mark.parametrize("seed", range(200))
def test_every_division_holds_the_bounds_and_comes_to_rest(seed: int) -> None:
    draw = random.Random(seed)
    claims = [_drawn(draw, f"j{number}") for number in range(draw.randint(1, 8))]
    free = draw.randint(0, 12)
    sizes = after_moves(claims, free)
    assert sizes == after_moves(list(reversed(claims)), free)
    used = sum((sizes[one.job] - one.workers) * one.shape[0] for one in claims)
    assert used <= free
    for one in claims:
        has = sizes[one.job]
        assert has == one.workers or one.fewest <= has <= one.most
        assert has == one.workers or not one.sizes or has in one.sizes
        assert has >= one.workers or (one.may_shrink and one.left_seconds is not None)
    for _ in range(6):
        before = {one.job: one.workers for one in claims}
        claims, free, has_moved = _carried_out(claims, free)
        if not has_moved:
            break
        # Nobody shrinks only to grow back.
        assert any(one.workers < before[one.job] for one in claims)
    assert not has_moved


def _carried_out(claims: list[Claim], free: int) -> tuple[list[Claim], int, bool]:
    """Shrink jobs and let others grow, as the loop does. Return the new claims, the GPUs that are free, and whether a
    job shrank."""
    sizes = after_moves(claims, free)
    after = {one.job: _resized(one, min(one.workers, sizes[one.job])) for one in claims}
    freed = sum((one.workers - after[one.job].workers) * one.shape[0] for one in claims)
    free += freed
    while turns := in_turn(after.values(), free):
        claim, to = turns[0]
        free -= (to - claim.workers) * claim.shape[0]
        after[claim.job] = _resized(claim, to)
    return list(after.values()), free, freed > 0


def _resized(claim: Claim, workers: int) -> Claim:
    left = claim.left_seconds
    if left is not None:
        left *= claim.speed(claim.workers) / claim.speed(workers)
    return replace(claim, workers=workers, left_seconds=left)


def _drawn(draw: random.Random, job: str) -> Claim:
    powers, fewest = draw.random() < 0.5, draw.choice((1, 2))
    workers = draw.choice((2, 4, 8)) if powers else draw.randint(fewest, 8)
    speeds = draw.choice((LINEAR, FLAT, (), ((1, 1.0), (2, 1.9), (4, 3.0), (8, 2.5))))
    return Claim(
        job, workers, fewest, draw.choice((workers, 8)), (1, 2, 4, 8) if powers else (), speeds,
        draw.choice((None, 50.0, 1_000.0, 50_000.0)), project=draw.choice(("ours", "ours", "ours", "theirs")),
        may_shrink=draw.random() < 0.8,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "workers", "most", "to"),
    [
        ((), 2, 8, 4),
        ((), 2, 3, 3),
        ((), 2, 2, 2),
        ((1, 4, 6), 1, 6, 4),  # the next size is beyond the double
        ((1, 2, 3, 4), 2, 9, 4),
        ((1, 4), 1, 3, 1),
    ],
)
def test_a_job_doubles_or_takes_the_next_allowed_size(
    sizes: tuple[int, ...], workers: int, most: int, to: int
) -> None:
    assert next_size(sizes, workers, most) == to
