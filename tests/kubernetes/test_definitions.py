"""Definitions of other systems (CRDs) that go while jobs run: no job is lost, each says why it waits, and all go on
when the definitions are back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import EngineRefused, GangMember
from controlplane.engines.kubernetes import kai, tenancy_sync
from controlplane.loop.project_sync import sync_projects_once
from controlplane.models import Command
from jobs.models import Allocation, Attempt, Job
from tests.builders import make_job
from tests.kube import KubeCluster, gpu_labels, kube_cluster
from tests.kubernetes.by_hand import Yard, own
from tests.kubernetes.engine_case import Case
from tests.kubernetes.kai_rig import crds, install, kai_running, why_no_definitions, why_no_programs
from tests.kubernetes.mpi_rig import MPI_JOBS, operator_running, why_no_definition, why_no_program

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
NO_OPERATOR = why_no_program() or why_no_definition()
NO_KAI = why_no_programs() or why_no_definitions()


def is_counted_once() -> bool:
    """No device is given to two pods."""
    held = list(Allocation.objects.filter(released_at=None).values_list("device", "milli_gpus"))
    return len({device for device, _ in held}) == len(held)


def remove(kube: KubeCluster, definition: str) -> None:
    kube.kubectl("delete", "crd", definition, "--timeout=60s")


def make_due() -> None:
    """What is tried again is due."""
    Command.objects.filter(state=Command.PENDING).update(
        not_before=Job.objects.earliest("submit_rank").created_at
    )


def test_an_attempt_for_an_operator_that_is_not_there_waits_and_says_so(case: Case) -> None:
    case.settings["mpi_operator"] = True
    engine = case.again()
    members = tuple(GangMember(rank, f"x-1-{rank}", case.node) for rank in range(2))
    spec = case.spec("mpirun", job_id="x", kind="mpi", world_size=2, launches=members, devices=())
    with pytest.raises(EngineRefused) as refusal:
        engine.start(spec)
    assert (refusal.value.code, refusal.value.is_passing) == (base.DEFINITION_MISSING, True)
    assert "MPIJob" in refusal.value.message


@pytest.mark.skipif(bool(NO_OPERATOR), reason=NO_OPERATOR)
def test_mpi_jobs_whose_definition_goes_start_again_when_it_is_back(
    kube: KubeCluster, tmp_path: Path
) -> None:
    with operator_running(kube, tmp_path / "operator.log"):
        yard = Yard(kube, tmp_path, mpi_operator=True, **own())
        yard.add_node()
        project = yard.project()
        mpi = make_job(project, "mpi", kind="mpi", command=["mpirun", "x"], workers=2)
        plain = make_job(project, "plain")
        for job in (mpi, plain):
            yard.until_is(job, "running")
        assert kube.must("GET", MPI_JOBS)["items"]

        remove(kube, "mpijobs.kubeflow.org")
        late = make_job(project, "late", kind="mpi", command=["mpirun", "x"], workers=2, gpus=0.0)
        yard.until_is(late, "starting", base.DEFINITION_MISSING)
        assert "MPIJob" in late.message
        for job in (mpi, plain):
            job.refresh_from_db()
        assert (plain.state, Attempt.objects.filter(job=plain).count()) == ("running", 1)
        assert mpi.state in ("queued", "starting", "stopping", "running")
        assert is_counted_once()

        kube.apply(crds() / "mpi-operator" / "kubeflow.org_mpijobs.yaml")
        for job in (late, mpi):
            yard.until(lambda job=job: make_due() or is_running(job), f"{job.name} to go on", 60)
        assert (mpi.failures, late.failures) == (0, 0)
        assert is_counted_once()
        yard.close()


def is_running(job: Job) -> bool:
    job.refresh_from_db()
    return job.state == "running"


@pytest.fixture
def kai_cluster(tmp_path: Path) -> Iterator[KubeCluster]:
    """One of its own: its definitions go."""
    with kube_cluster() as cluster:
        cluster.add_node("dgx1-1", gpus=4, labels=gpu_labels(32768, "default"))
        with kai_running(cluster, tmp_path):
            yield cluster


@pytest.mark.skipif(bool(NO_KAI), reason=NO_KAI)
@pytest.mark.parametrize("definition", ["podgroups.scheduling.run.ai", "queues.scheduling.run.ai"])
def test_jobs_of_kai_whose_definitions_go_wait_in_words_and_go_on(
    kai_cluster: KubeCluster, tmp_path: Path, definition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenancy_sync, "CHECK_SECONDS", 1)
    monkeypatch.setattr(kai, "GROUP_DELAY", timedelta(seconds=3))
    yard = Yard(kai_cluster, tmp_path, scheduler="kai")
    project = yard.project(quota=4)
    running = make_job(project, "running", gpus=3)
    yard.until_is(running, "running")
    waiting = make_job(project, "waiting", gpus=3)
    yard.until(lambda: len(yard.engine.pods()) == 2, "the offer")

    remove(kai_cluster, definition)
    late = make_job(project, "late", gpus=1)
    yard.until(lambda: sync_projects_once() and says_why(definition, waiting, late, yard), "the reason", 60)
    running.refresh_from_db()
    assert (running.state, Attempt.objects.filter(job=running).count()) == ("running", 1)

    install(kai_cluster)
    yard.until(lambda: (sync_projects_once() and make_due()) or is_running(late), "the late job", 90)
    end(yard, running)
    yard.until(lambda: (sync_projects_once() and make_due()) or is_running(waiting), "the waiting job", 90)
    assert is_counted_once()
    yard.close()


def says_why(definition: str, waiting: Job, late: Job, yard: Yard) -> bool:
    for job in (waiting, late):
        job.refresh_from_db()
        assert job.state in ("queued", "starting"), (job.name, job.state, job.message)
    if definition.startswith("podgroups"):
        said = [job.details.get("cluster_says", "") for job in (waiting, late)]
        return "pod groups cannot be read" in said[0] and "knows no PodGroup" in said[1]
    yard.cluster.refresh_from_db()
    return any("knows no Queue" in check["message"] for check in yard.cluster.checks)


def end(yard: Yard, job: Job) -> None:
    yard.kube.end_pod(f"{yard.prefix}{job.project.name}", yard.path_of(job).rpartition("/")[2])
    yard.until_is(job, "succeeded")
