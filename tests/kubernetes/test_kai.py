"""What KAI Scheduler itself says and does to single jobs of ours, through the engine and the loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines.kubernetes import names
from controlplane.loop.project_sync import sync_projects_once
from jobs.actions import stop_job
from tests.builders import make_job
from tests.kube import MERGE, KubeCluster, gpu_labels, kube_cluster
from tests.kubernetes.by_hand import Yard, actor, devices
from tests.kubernetes.kai_rig import kai_running, why_no_definitions, why_no_programs
from tests.waiting import wait_until

WHY_NOT = why_no_programs() or why_no_definitions()
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    """One node of eight GPUs, and KAI."""
    with kube_cluster() as cluster:
        cluster.add_node("dgx1-1", gpus=8, labels=gpu_labels(32768, "default"))
        with kai_running(cluster, tmp_path_factory.mktemp("kai")):
            yield cluster


@pytest.fixture
def plant(kube: KubeCluster, tmp_path: Path) -> Iterator[Yard]:
    plant = Yard(kube, tmp_path, scheduler="kai")
    yield plant
    plant.close()


def test_a_job_that_cannot_be_preempted_stays_inside_the_quota(plant: Yard) -> None:
    job = make_job(plant.project("team-a", 1), kind="interactive", gpus=2)
    plant.until_is(job, "queued", "interactive_over_quota")
    assert "has 1 GPU, 0 of them in use by such jobs, and this job asks for 2" in job.message
    assert "Non-preemptible workload is over quota" in job.details["cluster_says"]
    assert job.details["limit_milli_gpus"] is None


def test_a_limit_holds(plant: Yard) -> None:
    job = make_job(plant.project("team-a", 1, gpu_limit_milli=2000), gpus=3)
    plant.until_is(job, "queued", "over_gpu_limit")
    assert "may hold at most 2; this job asks for 3" in job.message


def test_higher_priority_takes_the_room_inside_a_project(plant: Yard) -> None:
    project = plant.project("team-a", 8)
    victim = make_job(project, "victim", gpus=8, priority=50)
    plant.until_is(victim, "running")
    taker = make_job(project, "taker", gpus=8, priority=60)
    plant.until_is(taker, "running")
    plant.until_is(victim, "queued", "preempted")
    assert (victim.details["by_name"], victim.details["kind"], victim.failures) == ("taker", "preempt", 0)
    assert "job taker of higher priority in the same project" in victim.message
    stop_job(taker, actor=actor())
    plant.until_is(victim, "running")
    assert victim.attempt == 2


def test_a_gang_waits_as_one_and_shares_stand_on_one_device(plant: Yard) -> None:
    project = plant.project("team-a", 8)
    shares = [make_job(project, f"share-{number}", gpus=0.5) for number in range(2)]
    for share in shares:
        plant.until_is(share, "running")
    assert [devices(share) for share in shares] == [[(0, 500)], [(0, 500)]]
    gang = make_job(project, "gang", gpus=4, workers=2)
    plant.until_is(gang, "queued", "gang_does_not_fit")
    assert "All 2 workers must start together, and only 1 fit now" in gang.message
    fits = make_job(project, "fits", gpus=3, workers=2)
    plant.until_is(fits, "running")
    assert [index for index, _ in devices(fits)] == [1, 2, 3, 4, 5, 6]


def test_a_queue_edited_by_hand_is_put_back_and_goes_with_its_project(plant: Yard) -> None:
    plant.project("team-a", 3)
    path = f"{names.list_path('Queue')}/{plant.prefix}team-a"
    quota = {"spec": {"resources": {"gpu": {"quota": 7}}}}
    plant.kube.must("PATCH", path, quota, kind=MERGE)
    plant.restart()  # a running one looks once a minute
    assert sync_projects_once()
    assert plant.kube.must("GET", path)["spec"]["resources"]["gpu"]["quota"] == 3
    plant.engine.forget_project("team-a")
    wait_until(lambda: plant.kube.api("GET", path)[0] == 404, 20, "the queue to be gone")


def test_a_stopped_job_leaves_nothing_in_the_cluster(plant: Yard) -> None:
    project = plant.project("team-a", 1)
    blocker = make_job(project, "blocker", gpus=8)
    plant.until_is(blocker, "running")
    job = make_job(project, "waiting", gpus=8)
    plant.until(lambda: len(plant.engine.pods()) == 2, "the offer")
    stop_job(job, actor=actor())
    plant.until(lambda: len(plant.engine.pods()) == 1, "the offer to be withdrawn")
    job.refresh_from_db()
    assert job.state == "stopped"
