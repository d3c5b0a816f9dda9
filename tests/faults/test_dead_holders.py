"""What a killed process held is free as soon as its successor starts; what a living one holds is not."""

import subprocess
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.loop.claim_tokens import free_what_the_dead_hold, new_token
from controlplane.loop.claims import claim
from controlplane.models import Command, Lease
from jobs.command_kinds import FORGET_POD
from tests.builders import make_cluster

pytestmark = pytest.mark.django_db


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this machine."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def hold(token: str) -> Command:
    """A lease and a command's claim under a token, with a long time to go."""
    until = timezone.now() + timedelta(hours=1)
    Lease.objects.create(name="loop", token=token, expires_at=until)
    return Command.objects.create(
        kind=FORGET_POD,
        cluster=make_cluster(),
        subject_kind="pod",
        subject_id="a-1-0",
        state=Command.CLAIMED,
        claim_token=token,
        claim_expires_at=until,
    )


def test_a_living_holder_keeps_what_it_has(other: subprocess.Popen[bytes]):
    hold(new_token(other.pid))
    assert free_what_the_dead_hold() == 0
    assert claim("loop", 10) is None


def test_a_killed_holder_is_succeeded_at_once(other: subprocess.Popen[bytes]):
    command = hold(new_token(other.pid))
    other.kill()
    other.wait()
    assert free_what_the_dead_hold() == 2
    assert claim("loop", 10) is not None
    command.refresh_from_db()
    assert command.claim_expires_at <= timezone.now()


def test_a_pid_that_was_used_again_is_another_process(other: subprocess.Popen[bytes]):
    machine, pid, ticks, rest = new_token(other.pid).split("-")
    hold("-".join([machine, pid, f"{int(ticks, 16) - 1:x}", rest]))
    assert free_what_the_dead_hold() == 2


def test_processes_of_other_machines_are_not_judged(other: subprocess.Popen[bytes]):
    token = new_token(other.pid)
    other.kill()
    other.wait()
    hold("000000" + token[6:])
    assert free_what_the_dead_hold() == 0


def test_tokens_fit_their_columns_and_differ():
    assert len(new_token()) <= 32
    assert len(f"{'f' * 6}-{2**22:x}-{2**35:x}-{'f' * 6}") <= 32
    assert new_token() != new_token()
