"""When an MPI attempt is decided: by its launcher, or by the loss of a host before that."""

import pytest

from jobs.kinds.base import PodEnd
from jobs.kinds.registry import KINDS

MPI = KINDS["mpi"]


def ends(*states: str) -> list[PodEnd]:
    return [PodEnd(rank, state, None) for rank, state in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        (("running", "running", "running"), None),
        (("succeeded", "running", "running"), "succeeded"),
        (("succeeded", "failed", "running"), "succeeded"),
        (("failed", "running", "running"), "failed"),
        (("running", "failed", "running"), "failed"),
        (("running", "succeeded", "running"), None),
        ((), None),
    ],
)
def test_the_launcher_decides(states: tuple[str, ...], outcome: str | None):
    assert MPI.outcome(ends(*states)) == outcome


def test_one_pod_launches_and_the_others_host():
    launcher, *hosts = MPI.pods({"workers": 3})
    assert (launcher.rank, launcher.role, launcher.is_launcher, launcher.is_host) == (
        0,
        "launcher",
        True,
        False,
    )
    assert [(host.rank, host.role, host.is_host) for host in hosts] == [
        (1, "worker", True),
        (2, "worker", True),
    ]
