"""What runs beside the program of an elastic pod, over pipes in place of an exec: memberships arrive whole, statuses
come back, and what a broken connection lost is sent again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines.base import EngineRefused, MemberReport
from controlplane.engines.kubernetes import elastic
from controlplane.engines.kubernetes.membership import Memberships
from tests.execs import Exec
from tests.waiting import patience, wait_until
from workloads.common.membership import READY, Mailbox, Member, Membership, Status

GIVEN = json.dumps({"generation": 3, "members": [{"id": 0, "address": "10.0.0.7:4000"}]})


def agent(directory: Path) -> Exec:
    """The agent on this machine."""
    *command, _ = elastic.agent_command()
    return Exec((sys.executable, *command[1:], str(directory)))


class Pod:
    """A pod with a mailbox; `agents` are those that were started in it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.mailbox = directory, Mailbox(directory)
        self.agents: list[Exec] = []
        self.refusals, self.rings = 1, 0
        self.memberships = Memberships(self.open, self.ring)

    def open(self, name: str) -> Exec:
        if self.refusals:
            self.refusals -= 1
            raise EngineRefused("pod_not_running", "It does not run.")
        self.agents.append(agent(self.directory))
        return self.agents[-1]

    def ring(self) -> None:
        self.rings += 1

    def exchange(self, membership: str = "") -> MemberReport:
        return self.memberships.exchange("pod", membership, is_running=True)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    pod = Pod(tmp_path)
    yield pod
    pod.memberships.close()
    assert all(agent.process.poll() is not None for agent in pod.agents)


def test_a_membership_arrives_and_the_status_comes_back(pod: Pod):
    assert pod.exchange(GIVEN) == MemberReport()
    wait_until(lambda: pod.exchange(GIVEN) and pod.mailbox.membership(), 20, "the membership")
    assert pod.mailbox.membership() == Membership(3, (Member(0, "10.0.0.7:4000"),))
    pod.mailbox.report(Status(0, "10.0.0.7:4000", state=READY))
    wait_until(lambda: pod.exchange().text, 20, "the status")
    assert json.loads(pod.exchange().text)["state"] == READY
    assert pod.rings == 1


def test_a_file_in_the_place_of_the_wakeup_is_replaced(pod: Pod):
    (pod.directory / "wakeup").write_text("")
    wait_until(lambda: pod.exchange(GIVEN) and pod.mailbox.membership(), 20, "the membership")
    assert (pod.directory / "wakeup").is_fifo()


def test_a_program_without_a_beat_gets_older(pod: Pod):
    pod.mailbox.report(Status(0, "10.0.0.7:4000"))
    os.utime(pod.directory / "status.json", (1, 1))
    wait_until(lambda: pod.exchange().silent_seconds > 1000, 20, "its age")


def test_over_a_new_connection_the_newest_membership_is_sent_again(pod: Pod):
    pod.mailbox.report(Status(0, "10.0.0.7:4000"))
    wait_until(lambda: pod.exchange().text, 20, "the first connection")
    pod.agents[0].process.kill()
    wait_until(lambda: pod.exchange(GIVEN).text and len(pod.agents) == 2, 20, "another connection")
    assert pod.exchange().silent_seconds < 1000
    wait_until(pod.mailbox.membership, 20, "the membership")


@pytest.mark.parametrize(
    ("found", "kept"), [(json.dumps({"generation": 5, "members": []}), True), ("{", False), (GIVEN, False)]
)
def test_a_membership_older_than_the_one_in_the_pod_is_ignored(tmp_path: Path, found: str, kept: bool):
    (tmp_path / "membership.json").write_text(found)
    late = agent(tmp_path)
    given = json.dumps({"generation": 4, "members": []})
    late.write(json.dumps(given).encode() + b"\n")
    late.stdin.close()
    assert late.process.wait(patience(20)) == 0
    late.close()
    assert (tmp_path / "membership.json").read_text() == (found if kept else given)


def test_a_status_of_the_same_size_in_the_same_file_is_reported(pod: Pod):
    path = pod.directory / "status.json"
    path.write_text('{"state": "ready"}')
    wait_until(lambda: "ready" in pod.exchange().text, 20, "the status")
    path.write_text('{"state": "other"}')
    wait_until(lambda: "other" in pod.exchange().text, 20, "the other status")
