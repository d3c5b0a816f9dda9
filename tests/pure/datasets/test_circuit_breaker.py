"""When calls to a place that does not answer are made again."""

from datasets.storage.circuit_breaker import CircuitBreaker


def test_one_call_is_let_through_after_the_pause_and_all_once_it_was_answered():
    now = [0.0]
    breaker = CircuitBreaker(10, lambda: now[0])
    assert breaker.admits()
    breaker.record(is_answered=False)
    assert not breaker.admits()
    now[0] = 10
    assert [breaker.admits(), breaker.admits()] == [True, False]
    breaker.record(is_answered=False)
    now[0] = 19
    assert not breaker.admits()
    now[0] = 20
    assert breaker.admits()
    breaker.record(is_answered=True)
    assert [breaker.admits(), breaker.admits()] == [True, True]


def test_without_a_pause_every_call_is_made():
    breaker = CircuitBreaker(0)
    breaker.record(is_answered=False)
    assert [breaker.admits(), breaker.admits()] == [True, True]
