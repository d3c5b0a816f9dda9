"""The supervisor's loop until it is asked to stop."""

import signal
from pathlib import Path

import pytest

from controlplane.supervisor import __main__ as program
from controlplane.supervisor.instance import Instance
from controlplane.supervisor.supervise import Keeper

INSTANCE = Instance("127.0.0.1", 1, "http://127.0.0.1:1", Path("/nonexistent"), "redis://127.0.0.1:1/0", 1)


class Turns(Keeper):
    """A keeper without children that does not sleep; the test fails at its third turn."""

    turns = 0

    def tend(self) -> None:
        self.turns += 1
        assert self.turns < 3, "the request to stop was lost"

    def sleep(self, longest_seconds: float) -> None:
        return


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program, "answers", lambda address: False)
    monkeypatch.setattr(program, "_end_with_make", lambda parent: None)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    before = {number: signal.getsignal(number) for number in numbers}
    keeper = Turns([])
    keeper.listen_to_signals()
    yield keeper
    signal.set_wakeup_fd(-1)
    keeper._reader.close()
    keeper._writer.close()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("where", ["answers", "is_make_waiting"])
def test_a_signal_in_any_part_of_a_turn_ends_it(
    keeper: Turns, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def be_interrupted(_: object) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return False

    monkeypatch.setattr(program, where, be_interrupted)
    program._keep(keeper, INSTANCE, 0.0, {"setup_path": ""})
    assert keeper.turns == 1


def test_an_interrupted_make_ends_it(keeper: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "is_make_waiting", lambda parent: True)
    program._keep(keeper, INSTANCE, 0.0, {"setup_path": ""})
    assert keeper.turns == 1
