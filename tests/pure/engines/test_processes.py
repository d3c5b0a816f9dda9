"""Whose processes these are, on process tables of the test."""

from __future__ import annotations

import os

import pytest

from controlplane.engines.local import processes
from controlplane.engines.local.processes import Process


def process(pid: int, parent: int = 1, session: int = 0, start_ticks: int = 100) -> Process:
    return Process(pid, parent, session, start_ticks)


def test_descendants_are_found_through_all_generations():
    table = [process(2), process(3, 2), process(4, 3), process(5, 1), process(6, 4)]
    assert sorted(processes.descendants(2, table)) == [3, 4, 6]
    assert processes.descendants(5, table) == []


def test_a_session_is_the_one_that_its_leader_opened():
    table = [process(7, session=7), process(8, session=7, start_ticks=120), process(9, session=9)]
    assert processes.in_session(7, 100, table) == [7, 8]


def test_a_session_number_that_was_used_again_is_a_strangers():
    table = [process(7, session=7, start_ticks=500), process(8, session=7, start_ticks=510)]
    assert processes.in_session(7, 100, table) == []


def test_a_session_outlives_its_leader():
    assert processes.in_session(7, 100, [process(8, session=7, start_ticks=120)]) == [8]


def test_the_token_is_looked_for_only_in_processes_that_started_since_the_shim(monkeypatch):
    read = []

    def environment(pid: int) -> list[bytes]:
        read.append(pid)
        return [f"{processes.TOKEN_VARIABLE}=ours".encode()] if pid != 4 else []

    monkeypatch.setattr(processes, "_environment", environment)
    table = [process(2, start_ticks=99), process(3, start_ticks=100), process(4, start_ticks=101), process(5)]
    assert processes.with_token("ours", 100, table) == [3, 5]
    assert read == [3, 4, 5]


def test_this_process_lives_under_its_own_identity_only():
    me = processes.find(os.getpid())
    assert me is not None
    boot = processes.boot_id()
    assert processes.is_alive(me.pid, me.start_ticks, boot)
    assert not processes.is_alive(me.pid, me.start_ticks + 1, boot)
    assert not processes.is_alive(me.pid, me.start_ticks, "another boot")
    assert processes.find(2**22 + 1) is None


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_a_process_that_cannot_be_killed_does_not_save_the_others(monkeypatch, error: type[OSError]):
    killed = []

    def kill(pid: int, number: int) -> None:
        if pid == 1:
            raise error
        killed.append((pid, number))

    monkeypatch.setattr(os, "kill", kill)
    processes.kill([1, 2])
    assert killed == [(2, processes.SIGKILL)]
