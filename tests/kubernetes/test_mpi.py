"""MPI jobs on a real node: an mpirun in one container starts ranks in others, with our own launcher and with the MPI
operator, where that is."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, EngineRefused, GangMember, PodSpec, ProjectReport, pod_name
from controlplane.engines.registry import open_engine
from tests.contract.harness import PROJECT, EngineCase, kubernetes_settings
from tests.kube import KubeCluster
from tests.kubernetes.mpi_rig import MPI_JOBS, operator_running, why_no_definition, why_no_program
from tests.waiting import wait_until

RANKS = 3
SAY = 'echo "rank $PMI_RANK of $PMI_SIZE on $(uname -n) in pod $TRAINYARD_RANK on GPU $TRAINYARD_GPU_DEVICES: $WORD"'
KILL_SSHD = "for it in /proc/[0-9]*; do [[ $(<$it/comm) != sshd* ]] || kill -9 ${it#/proc/}; done"
SSHD = Path("/usr/sbin/sshd")  # containers have this machine's /usr
OWN, OPERATOR = "own", "operator"
pytestmark = pytest.mark.skipif(not SSHD.exists(), reason="no sshd: apt-get install openssh-server")


@pytest.fixture(scope="module", params=[OWN, OPERATOR])
def launcher_kind(
    request: pytest.FixtureRequest, kube_node: KubeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == OPERATOR and (why := why_no_program() or why_no_definition()):
        pytest.skip(f"no MPI operator: {why}")
    if request.param == OPERATOR:
        with operator_running(kube_node, tmp_path_factory.mktemp("mpi") / "operator.log"):
            yield OPERATOR
    else:
        yield OWN


@pytest.fixture
def case(kube_node: KubeCluster, launcher_kind: str, tmp_path: Path) -> Iterator[EngineCase]:
    settings = {**kubernetes_settings(kube_node), "mpi_operator": launcher_kind == OPERATOR}
    engine = open_engine("kubernetes", settings, tmp_path)
    case = EngineCase(engine, tmp_path, lambda seconds: None)
    engine.sync_projects((ProjectReport(PROJECT, 10_000, None, 1000),))
    yield case
    case.close()


def gang(case: EngineCase, *command: str, **fields: Any) -> list[PodSpec]:
    """Start an attempt whose rank 0 launches, all of it on the real node; the launcher is the first."""
    job_id = str(uuid.uuid4())
    members = tuple(GangMember(rank, pod_name(job_id, 1, rank), "node-a", (rank,)) for rank in range(RANKS))
    shapes = [{"role": "launcher", "launches": members}, *[{"role": "worker", "is_host": True}] * (RANKS - 1)]
    gang = {"job_id": job_id, "kind": "mpi", "world_size": RANKS, "min_pods": RANKS, **fields}
    devices = [(DeviceShare(rank, 1000, 32768),) for rank in range(RANKS)]
    return [
        begin(case, *command, **gang, rank=rank, devices=devices[rank], **shape)
        for rank, shape in enumerate(shapes)
    ]


def begin(case: EngineCase, *command: str, **fields: Any) -> PodSpec:
    """Start a pod as the loop does: what is refused for now is tried again."""
    started: list[PodSpec] = []

    def tried() -> bool:
        try:
            started.append(case.start(*command, **fields))
        except EngineRefused as refusal:
            if not refusal.is_passing:
                raise
        return bool(started)

    wait_until(tried, 60, "the pod to be started")
    return started[0]


def place_of(kube: KubeCluster, spec: PodSpec) -> tuple[str, str]:
    """Namespace and name of the pod's object."""
    query = f"labelSelector=trainyard.io/job-id={spec.job_id},trainyard.io/rank={spec.rank}"
    metadata = kube.must("GET", f"/api/v1/pods?{query}")["items"][0]["metadata"]
    return metadata["namespace"], metadata["name"]


def mpi_jobs(kube: KubeCluster, spec: PodSpec) -> list[dict[str, Any]]:
    """What the operator was given of this attempt."""
    status, answer = kube.api("GET", f"{MPI_JOBS}?labelSelector=trainyard.io/job-id={spec.job_id}")
    return answer["items"] if status == 200 else []


def test_mpirun_starts_one_rank_in_each_pod_without_being_told(
    case: EngineCase, kube_node: KubeCluster, launcher_kind: str
):
    launcher, *hosts = gang(case, "mpirun", "sh", "-c", SAY, env={"WORD": "it"})
    report = case.wait_end(launcher, 120)
    said = case.text(launcher)
    assert (report.state, report.exit_code, report.node) == (base.SUCCEEDED, 0, "node-a"), said
    names = [f"rank-{rank}" for rank in range(RANKS)]
    if launcher_kind == OPERATOR:
        job = f"job-{launcher.job_id}-1"
        names = [f"{job}-launcher", *(f"{job}-worker-{number}" for number in range(RANKS - 1))]
    assert sorted(said.splitlines()) == [
        f"rank {rank} of {RANKS} on {names[rank]} in pod {rank} on GPU {rank}: it" for rank in range(RANKS)
    ]
    assert len(mpi_jobs(kube_node, launcher)) == (launcher_kind == OPERATOR)
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
    namespace, name = place_of(kube_node, host)
    kube_node.kubectl("-n", namespace, "exec", name, "--", "bash", "-c", KILL_SSHD)
    report = case.wait_end(host)
    assert (report.state, report.reason) == (base.FAILED, base.KILLED), report
    assert case.wait_end(launcher).state == base.FAILED


def test_a_host_that_somebody_deletes_keeps_its_end_and_does_not_come_again(
    case: EngineCase, kube_node: KubeCluster
):
    launcher, host, other = gang(case, "mpirun", "sh", "-c", "echo up; sleep 600")
    wait_until(lambda: case.text(launcher).count("up") == RANKS, 60, "all ranks to run")
    shell = case.engine.open_shell(host.name, 80, 24)
    with contextlib.closing(shell):
        shell.write(b"echo rank=$TRAINYARD_RANK\n")
        said = b""
        while b"rank=1" not in said:
            said += shell.read()
    namespace, name = place_of(kube_node, host)
    kube_node.kubectl("-n", namespace, "delete", "pod", name, "--wait=false", "--grace-period=1")
    assert case.wait_end(host).reason == base.POD_DELETED
    assert case.wait_end(launcher).state == base.FAILED
    case.engine.stop(other.name, 5)
    case.wait_end(other)
    for spec in (launcher, host, other):
        case.surely(case.engine.forget, spec.name)
    assert {report.name for report in case.engine.pods()}.isdisjoint({launcher.name, host.name, other.name})
    begin(case, "true", job_id=host.job_id, rank=1, is_host=True, kind="mpi", world_size=RANKS)
    assert case.report(host) is None
