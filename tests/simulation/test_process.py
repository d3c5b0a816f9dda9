"""The simulating process: it answers as the core does, and its end costs one question."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from controlplane.scheduling.estimates import prospect, start_ranges
from controlplane.simulation.client import SimulationFailed, Simulator
from tests.pure.scheduling.builders import job, nodes, project, running, view
from tests.waiting import patience, wait_until


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    made = Simulator()
    yield made
    made.close()


def full():
    """A node of 8 in use for an hour more, and two jobs that wait for it."""
    holder = running(job("r0", "p", 8, expected_runtime_seconds=7200), ("n0", range(8)), started_at=96_400)
    return view(nodes(1), [project("p", 8)], [holder, job("j1", "p", 8), job("j2", "p", 4)], now=100_000)


def process_of(simulator: Simulator) -> int:
    assert simulator._child is not None
    return simulator._child[0].pid


def test_it_answers_as_the_core_does(simulator):
    outlook = simulator.ask("outlook", full(), "j1", None, True, budget_seconds=60)
    assert outlook.ranges == start_ranges(full())
    assert outlook.ways == []
    assert simulator.ask("foresee", full(), "j2", None, budget_seconds=60) == prospect(full(), "j2")


def test_a_failure_is_named_and_the_process_goes_on(simulator):
    with pytest.raises(SimulationFailed, match="AttributeError"):
        simulator.ask("foresee", "no view", "j1", None, budget_seconds=60)
    before = process_of(simulator)
    assert simulator.ask("foresee", full(), "j1", None, budget_seconds=60) == prospect(full(), "j1")
    assert process_of(simulator) == before


def test_the_next_question_after_a_kill_has_a_new_process(simulator):
    simulator.ask("foresee", full(), "j1", None, budget_seconds=60)
    killed = process_of(simulator)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: simulator._child[0].poll() is not None, what="the end of the process")
    assert simulator.ask("foresee", full(), "j1", None, budget_seconds=60) == prospect(full(), "j1")
    assert process_of(simulator) != killed


def test_what_takes_too_long_is_given_up(simulator):
    hasty = Simulator(grace_seconds=0)
    try:
        with pytest.raises(SimulationFailed, match="too long"):
            hasty.ask("foresee", full(), "j1", None, budget_seconds=0)
        assert hasty._child is None
    finally:
        hasty.close()


def test_it_runs_behind_every_page(simulator):
    simulator.ask("foresee", full(), "j1", None, budget_seconds=60)
    assert os.getpriority(os.PRIO_PROCESS, process_of(simulator)) > os.getpriority(os.PRIO_PROCESS, 0)


class CountedLock:
    """A lock that counts who has asked for it."""

    def __init__(self) -> None:
        self.asked = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


def test_a_shutdown_waits_for_no_answer(simulator):
    simulator.ask("foresee", full(), "j1", None, budget_seconds=60)
    simulator._lock, busy = CountedLock(), process_of(simulator)
    os.kill(busy, signal.SIGSTOP)
    failures: list[str] = []

    def ask() -> None:
        try:
            simulator.ask("foresee", full(), "j1", None, budget_seconds=600)
        except SimulationFailed as error:
            failures.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: simulator._lock.asked == 2, what="one question at work, one behind it")
    closing = threading.Thread(target=simulator.close)
    closing.start()
    closing.join(patience(10))
    has_closed = not closing.is_alive()
    if not has_closed:
        os.kill(busy, signal.SIGKILL)
    for thread in (*threads, closing):
        thread.join(patience(60))
    assert has_closed
    assert len(failures) == 2
    assert simulator._child is None
