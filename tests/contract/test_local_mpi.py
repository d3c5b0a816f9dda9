"""A launcher and the pods that host its ranks, on the local engine, with a real mpirun."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, GangMember, PodSpec, pod_name
from tests.contract.harness import EngineCase, make_case
from tests.waiting import wait_until

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


def test_each_rank_sees_the_devices_and_the_node_of_its_pod(case: EngineCase):
    names = "PMI_RANK", "TRAINYARD_RANK", "TRAINYARD_NODE", "CUDA_VISIBLE_DEVICES", "TRAINYARD_GPU_DEVICES"
    show = "echo " + " ".join(f"${name}" for name in (*names, "MPI_LOCALRANKID"))
    launcher, *_ = gang(case, "mpirun", "sh", "-c", show)
    assert case.wait_end(launcher).exit_code == 0, case.text(launcher)
    assert sorted(case.text(launcher).splitlines()) == [
        f"{rank} {rank} node-a {rank} {rank} 0" for rank in range(3)
    ]


def test_the_launcher_sees_the_devices_of_the_whole_gang(case: EngineCase):
    launcher, *_ = gang(case, "sh", "-c", "echo $TRAINYARD_GPU_DEVICES")
    case.wait_end(launcher)
    assert case.text(launcher) == "0,1,2\n"


def test_a_variable_that_the_command_sets_reaches_all_ranks(case: EngineCase):
    launcher, *_ = gang(case, "sh", "-c", "export LR=0.5; mpirun sh -c 'echo $LR $MASTER_ADDR'")
    case.wait_end(launcher)
    assert case.text(launcher) == "0.5 127.0.0.1\n" * 3


def test_ranks_end_with_the_launcher_after_they_have_saved(case: EngineCase):
    script = "trap 'echo saved $PMI_RANK; exit 143' TERM; echo up; while true; do sleep 0.05; done"
    launcher, *_ = gang(case, "mpirun", "sh", "-c", script)
    wait_until(lambda: case.text(launcher).count("up\n") == 3, what="all ranks to run")
    report = case.report(launcher)
    assert report is not None
    assert not report.ports  # that of rank 0 is for the ranks alone
    case.engine.stop(launcher.name, 20)
    assert case.wait_end(launcher).reason == base.STOPPED
    assert sorted(line for line in case.text(launcher).splitlines() if line.startswith("saved")) == [
        f"saved {rank}" for rank in range(3)
    ]


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


PROGRAM = """
import os, signal, time
if os.environ["TRAINYARD_RANK"] == "1":
    {fault}
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            "raise ValueError('loss is not a number')",
            "Rank 1 on node-a failed first, with exit code 1: ValueError",
        ),
        ("raise SystemExit(9)", "Rank 1 on node-a failed first, with exit code 9."),
        ("os.kill(os.getpid(), signal.SIGKILL)", "Rank 1 on node-a was killed."),
    ],
)
def test_the_first_rank_that_fails_ends_the_others_and_is_named(
    case: EngineCase, tmp_path: Path, fault, sentence
):
    (tmp_path / "faulty.py").write_text(PROGRAM.format(fault=fault))
    script = f"cd {tmp_path} && CLEAN_UP_SECONDS=0 exec python -m workloads.common.launch faulty"
    launcher, *_ = gang(case, "sh", "-c", script)
    report = case.wait_end(launcher)
    assert report.state == base.FAILED
    assert sentence in report.message, case.text(launcher)
    assert sentence in case.text(launcher)
    assert "3 ranks by" in case.text(launcher)


def test_the_error_file_is_the_launchers_and_its_text_is_printable(case: EngineCase, tmp_path: Path):
    (tmp_path / "other").write_text("not for the job")
    plain = case.start("sh", "-c", "exit 3", env={"TRAINYARD_ERROR_FILE": str(tmp_path / "other")})
    assert case.wait_end(plain).message == "The command ended with exit code 3."
    launcher, *_ = gang(case, "sh", "-c", "printf 'a\\0b\\n' > $TRAINYARD_ERROR_FILE; exit 3", ranks=2)
    assert case.wait_end(launcher).message == "The command ended with exit code 3. a b"


def test_without_mpirun_the_ranks_are_started_by_the_program_and_that_is_said(
    case: EngineCase, tmp_path: Path
):
    (tmp_path / "shown.py").write_text(
        "import os; os.write(1, b'rank %s %s\\n' % (os.environb[b'RANK'], os.environb[b'WORLD_SIZE']))"
    )
    alone = 'python=$(command -v python) && PATH=/nowhere exec "$python"'
    script = f"cd {tmp_path} && {alone} -m workloads.common.launch shown"
    launcher, *_ = gang(case, "sh", "-c", script)
    assert case.wait_end(launcher).exit_code == 0
    first, *said = case.text(launcher).splitlines()
    assert "there is no mpirun that runs" in first
    assert sorted(said) == [f"rank {rank} 3" for rank in range(3)]
