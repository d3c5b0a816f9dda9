"""A launcher and the pods that host its ranks, on the local engine, with a real mpirun."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, GangMember, PodSpec, pod_name
from tests.contract.harness import EngineCase, make_case

SAY_RANK = ("mpirun", "sh", "-c", "echo rank $PMI_RANK of $PMI_SIZE sees $CUDA_VISIBLE_DEVICES")


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path)
    yield case
    case.close()


def gang(case: EngineCase, *command: str, ranks: int = 3) -> list[PodSpec]:
    """Start an attempt whose rank 0 launches; each pod holds the device of its rank."""
    job_id = str(uuid.uuid4())
    members = tuple(GangMember(rank, pod_name(job_id, 1, rank), "node-a", (rank,)) for rank in range(ranks))
    devices = [(DeviceShare(rank, 1000, 32768),) for rank in range(ranks)]
    hosts = [
        case.start(*command, job_id=job_id, rank=rank, is_host=True, devices=devices[rank], world_size=ranks)
        for rank in range(1, ranks)
    ]
    launcher = case.start(
        *command, job_id=job_id, role="launcher", launches=members, devices=devices[0], world_size=ranks
    )
    return [launcher, *hosts]


def test_mpirun_starts_one_rank_per_pod_without_being_told(case: EngineCase):
    launcher, *_ = gang(case, *SAY_RANK)
    assert case.wait_end(launcher).exit_code == 0
    said = sorted(case.text(launcher).splitlines())
    assert [line.split(" sees")[0] for line in said] == [f"rank {rank} of 3" for rank in range(3)]


def test_the_ranks_see_the_devices_of_the_whole_gang(case: EngineCase):
    launcher, *_ = gang(case, "sh", "-c", "echo $TRAINYARD_GPU_DEVICES")
    case.wait_end(launcher)
    assert case.text(launcher) == "0,1,2\n"


def test_a_host_runs_nothing_of_the_command_and_stops_when_told(case: EngineCase):
    launcher, *hosts = gang(case, *SAY_RANK)
    case.wait_end(launcher)
    for host in hosts:
        report = case.report(host)
        assert report is not None
        assert report.state == base.RUNNING
        case.engine.stop(host.name, 5)
        assert case.wait_end(host).reason == base.STOPPED
        assert case.text(host) == ""


def test_a_failing_rank_fails_the_launcher(case: EngineCase):
    launcher, *_ = gang(case, "mpirun", "sh", "-c", "exit 7")
    assert case.wait_end(launcher).exit_code == 7
