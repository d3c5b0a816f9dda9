"""MPI jobs on a real node: an mpirun in one container starts ranks in others, with the key and the files of ours."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, GangMember, PodSpec, pod_name
from tests.contract.harness import EngineCase, make_case
from tests.kube import KubeCluster
from tests.waiting import wait_until

RANKS = 3
SAY = 'echo "rank $PMI_RANK of $PMI_SIZE on $(uname -n) in pod $TRAINYARD_RANK gets $WORD"'

KILL_SSHD = "for it in /proc/[0-9]*; do [[ $(<$it/comm) != sshd* ]] || kill -9 ${it#/proc/}; done"
SSHD = Path("/usr/sbin/sshd")  # containers have this machine's /usr
pytestmark = pytest.mark.skipif(not SSHD.exists(), reason="no sshd: apt-get install openssh-server")


@pytest.fixture
def case(kube_node: KubeCluster, tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("kubernetes", tmp_path, kube_node)
    yield case
    case.close()


def namespace_of(kube: KubeCluster, spec: PodSpec) -> str:
    """Where the pod is."""
    query = f"/api/v1/pods?fieldSelector=metadata.name={spec.name}"
    namespace: str = kube.must("GET", query)["items"][0]["metadata"]["namespace"]
    return namespace


def gang(case: EngineCase, *command: str, **fields: Any) -> list[PodSpec]:
    """Start an attempt whose rank 0 launches, all of it on the real node; the launcher is the first."""
    job_id = str(uuid.uuid4())
    members = tuple(GangMember(rank, pod_name(job_id, 1, rank), "node-a", (rank,)) for rank in range(RANKS))
    shapes = [{"role": "launcher", "launches": members}, *[{"role": "worker", "is_host": True}] * (RANKS - 1)]
    return [
        case.start(
            *command,
            job_id=job_id,
            rank=rank,
            kind="mpi",
            devices=(DeviceShare(rank, 1000, 32768),),
            world_size=RANKS,
            min_pods=RANKS,
            **shape,
            **fields,
        )
        for rank, shape in enumerate(shapes)
    ]


def test_mpirun_starts_one_rank_in_each_pod_without_being_told(case: EngineCase):
    launcher, *hosts = gang(case, "mpirun", "sh", "-c", SAY, env={"WORD": "it"})
    report = case.wait_end(launcher, 120)
    said = case.text(launcher)
    assert (report.state, report.exit_code) == (base.SUCCEEDED, 0), said
    assert sorted(said.splitlines()) == [
        f"rank {rank} of {RANKS} on rank-{rank} in pod {rank} gets it" for rank in range(RANKS)
    ]
    for host in hosts:
        assert case.wait_running(host).state == base.RUNNING
        case.engine.stop(host.name, 5)
        assert case.wait_end(host).reason == base.STOPPED


def test_a_failing_rank_fails_the_launcher(case: EngineCase):
    launcher, *_ = gang(case, "mpirun", "sh", "-c", 'echo "from $PMI_RANK"; [ $PMI_RANK != 2 ] || exit 7')
    report = case.wait_end(launcher, 120)
    assert (report.reason, report.exit_code) == (base.EXIT_CODE, 7)
    assert {f"from {rank}" for rank in range(RANKS)} <= set(case.text(launcher).splitlines())


def test_a_killed_host_is_named_and_ends_the_launcher(case: EngineCase, kube_node: KubeCluster):
    launcher, host, _ = gang(case, "mpirun", "sh", "-c", "echo up; sleep 600")
    wait_until(lambda: case.text(launcher).count("up") == RANKS, 60, "all ranks to run")
    namespace = namespace_of(kube_node, host)
    kube_node.kubectl("-n", namespace, "exec", host.name, "--", "bash", "-c", KILL_SSHD)
    report = case.wait_end(host)
    assert (report.state, report.reason) == (base.FAILED, base.KILLED), report
    assert case.wait_end(launcher).state == base.FAILED
