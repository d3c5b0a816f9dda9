"""What people do to a cluster's objects, and what they name that is not there, as the job's user sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.kubernetes import reports, tenancy_sync
from controlplane.loop.project_sync import sync_projects_once
from controlplane.models import Command
from jobs.models import Attempt
from tests.builders import make_job
from tests.kube import MERGE, KubeCluster
from tests.kubernetes.by_hand import Yard, devices, own, put_forward, started
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


@pytest.fixture
def yard(kube: KubeCluster, tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(kube, tmp_path, **own())
    yard.add_node()
    yield yard
    yard.close()


def test_a_quota_that_somebody_made_smaller_is_waited_for_and_put_back(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = yard.project(gpu_limit_milli=4000)
    running = make_job(project, "running")
    started(yard, running)
    path = f"/api/v1/namespaces/{yard.prefix}{project.name}/resourcequotas/trainyard-limit"
    hard = yard.kube.must("GET", path)["spec"]["hard"]
    smaller = dict.fromkeys(hard, "1")
    yard.kube.must("PATCH", path, {"spec": {"hard": smaller}}, kind=MERGE)
    wait_until(lambda: yard.kube.must("GET", path)["status"].get("hard") == smaller, 20, "the quota to count")
    job = make_job(project, "waiting")
    yard.until_is(job, "starting", base.QUOTA_REFUSED)
    assert "trainyard-limit" in job.message
    monkeypatch.setattr(tenancy_sync, "CHECK_SECONDS", 0)
    assert sync_projects_once()
    assert yard.kube.must("GET", path)["spec"]["hard"] == hard
    Command.objects.update(not_before=job.created_at)
    yard.until(lambda: yard.kube.must("GET", path)["status"].get("hard") == hard, "the quota to count again")
    Command.objects.update(not_before=job.created_at)
    started(yard, job)
    running.refresh_from_db()
    assert (running.state, job.failures, Attempt.objects.count()) == ("running", 0, 2)
    assert not set(devices(running)) & set(devices(job))


@pytest.fixture
def silent_kubelets(yard: Yard) -> Iterator[None]:
    """What plays the kubelets of fake nodes says nothing for a while: the test says it."""
    kwok = yard.kube.part("kwok")
    kwok.suspend()
    yield
    kwok.resume()


@pytest.mark.usefixtures("silent_kubelets")
def test_an_image_that_does_not_exist_fails_the_job_in_the_nodes_words(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "REFUSED_PULL_SECONDS", 600)  # a busy machine may take long to come to this
    job = make_job(yard.project(), image="nobody/has:this")
    yard.until(lambda: yard.engine.pods() and yard.engine.pods()[0].node, "its node")
    said = {"reason": "ErrImagePull", "message": "docker.io/nobody/has:this: manifest unknown"}
    container = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    yard.kube.patch_status(
        yard.path_of(job), {"containerStatuses": [container | {"state": {"waiting": said}}]}
    )
    yard.until_is(job, "starting", base.IMAGE_PULL_FAILED)
    put_forward(yard.engine.client, "server_time", reports.REFUSED_PULL_SECONDS + 1, monkeypatch)
    yard.until(lambda: job.refresh_from_db() or job.next_state == "failed", "the job's end")
    assert job.reason == base.IMAGE_PULL_FAILED
    assert "manifest unknown" in job.message
    assert devices(job), "its pod may still begin"
    yard.kube.must("DELETE", f"/api/v1/nodes/{yard.nodes[0]}")
    absences = yard.engine._watching._absences
    wait_until(lambda: yard.nodes[0] not in yard.engine._watching.last_nodes(), 20, "the node to go")
    yard.engine.pods()
    for clock, name in ((absences, "_clock"), (yard.engine.client, "server_time")):
        put_forward(clock, name, 61, monkeypatch)
    yard.until_is(job, "failed", base.IMAGE_PULL_FAILED)
    assert devices(job) == []
