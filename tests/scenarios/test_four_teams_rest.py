"""The four-team scenario on a running control plane: `make up`, REST, and real processes on the local engine."""

import os
from collections.abc import Iterator

import psutil
import pytest

from tests.scenarios.four_teams.rest import play, stop_all
from tests.servers import ControlPlane, control_plane

pytestmark = pytest.mark.slow


@pytest.fixture
def plane(tmp_path) -> Iterator[ControlPlane]:
    variables = {"TRAINYARD_CLUSTERS": "local:dgx1-1=8x32768,dgx1-2=8x32768"}
    if url := os.environ.get("DATABASE_URL"):  # the run is one on PostgreSQL
        variables["DATABASE_URL"] = url
    with control_plane(tmp_path / "state", variables) as plane:
        yield plane
        stop_all(plane)


def processes_of(plane: ControlPlane) -> int:
    """How many processes of this machine are the command of one of the instance's pods."""
    sleepers = [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] == ["sleep", "infinity"]
    ]
    return sum(process.cwd().startswith(str(plane.state_dir)) for process in sleepers)


def test_twenty_steps_with_real_processes(plane):
    play(plane)
    assert processes_of(plane) == 14
