"""How many calls a cluster is asked for, and whose turn it is."""

import threading
import time

import pytest

from controlplane.kubernetes_api.rate_limiter import (
    CREATE,
    LONGEST_PAUSE_SECONDS,
    READ,
    URGENT,
    Allowance,
    TokenBucket,
)
from tests.waiting import wait_until


def taken_until(allowance: Allowance, end: float, step: float = 0.01) -> int:
    """How many calls may be made up to `end` by someone who always wants to."""
    now, taken = 0.0, 0
    while now < end:
        if allowance.seconds_until_free(now) == 0:
            allowance.take()
            taken += 1
        else:
            now += step
    return taken


def test_a_burst_and_then_the_rate():
    assert taken_until(Allowance(10, 5, now=0), 10) == 5 + 100 - 1


def test_a_long_silence_fills_no_more_than_the_burst():
    allowance = Allowance(10, 5, now=0)
    assert allowance.seconds_until_free(1e6) == 0
    for _ in range(5):
        allowance.take()
    assert allowance.seconds_until_free(1e6) == pytest.approx(0.1)


def test_a_pause_holds_and_a_shorter_one_does_not_end_it():
    allowance = Allowance(10, 5, now=0)
    allowance.pause(0, 3)
    allowance.pause(1, 1)
    assert allowance.seconds_until_free(1) == 2
    assert allowance.seconds_until_free(3) == 0


def test_no_pause_is_for_ever():
    allowance = Allowance(10, 5, now=0)
    allowance.pause(0, 86_400)
    assert allowance.seconds_until_free(0) == LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize(("rate", "burst"), [(0, 5), (-1, 5), (10, 0)])
def test_a_bucket_that_would_never_give(rate, burst):
    with pytest.raises(ValueError, match="rate"):
        Allowance(rate, burst, now=0)


def turns(bucket: TokenBucket, wanted: list[int]) -> list[int]:
    """The order in which threads that ask in this order, while nobody may call, get their turn."""
    order: list[int] = []
    noting = threading.Lock()

    def ask(number: int) -> None:
        assert bucket.acquire(wanted[number])
        with noting:
            order.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(wanted))]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda number=number: len(bucket._waiting) == number + 1, 5, "the queue")
    for thread in threads:
        thread.join()
    return order


def test_urgent_calls_go_first_and_the_rest_in_order():
    bucket = TokenBucket(rate_per_second=20, burst=1)
    bucket.acquire()
    bucket.pause(0.3)
    assert turns(bucket, [CREATE, CREATE, READ, URGENT, READ, URGENT]) == [3, 5, 2, 4, 0, 1]


def test_who_does_not_get_a_turn_in_time_leaves_the_queue():
    bucket = TokenBucket()
    bucket.pause(60)
    began = time.monotonic()
    assert not bucket.acquire(URGENT, timeout_seconds=0.1)
    assert time.monotonic() - began < 30
    assert not bucket._waiting
