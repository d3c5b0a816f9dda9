"""What tests wait with: at once when it is true, in time when it never is, longer on a busy machine."""

import itertools

import pytest

from tests import waiting
from tests.waiting import SLOWEST, next_pause, slowness, wait_until


def test_the_value_is_returned_as_soon_as_it_is_true():
    numbers = itertools.count()
    assert wait_until(lambda: next(numbers) >= 2 and "there", 30) == "there"


def test_what_never_comes_true_is_named_with_its_last_value():
    with pytest.raises(AssertionError, match=r"the moon did not come true .* \(last value: 0\)"):
        wait_until(lambda: 0, 0.01, "the moon")


def test_a_busy_machine_is_given_longer(monkeypatch):
    monkeypatch.setattr(waiting, "slowness", lambda: 1000.0)
    numbers = itertools.count()
    assert wait_until(lambda: next(numbers) > 3, 0.001)


def test_slowness_is_bounded():
    assert 1.0 <= slowness() <= SLOWEST


@pytest.mark.parametrize(("waited", "pause"), [(0, 0.02), (0.1, 0.02), (1, 0.1), (60, 0.2)])
def test_polls_become_rarer(waited: float, pause: float):
    assert next_pause(waited) == pytest.approx(pause)
