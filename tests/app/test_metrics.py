"""/metrics: who may read it, and what alerts can count on."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from django.test import Client, override_settings

from controlplane.models import Cluster
from jobs.models import Job
from tests.builders import make_job
from tests.cast import Cast

TOKEN = "t" * 32


def read(client: Client, token: str = TOKEN) -> str:
    with override_settings(METRICS_TOKEN=TOKEN):
        answer = client.get("/metrics", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    return answer.content.decode()


@pytest.mark.django_db
def test_only_the_token_opens_it(client: Client) -> None:
    assert client.get("/metrics").status_code == 404
    with override_settings(METRICS_TOKEN=TOKEN):
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"authorization": "Bearer é"}).status_code == 401
        assert client.get("/metrics", headers={"authorization": f"Basic {TOKEN}"}).status_code == 401


def test_projects_queues_and_clusters_are_told(client: Client, cast: Cast) -> None:
    job = make_job(cast.project, "waits", gpus=2)
    held = make_job(cast.other, "runs", gpus=1)
    Job.objects.filter(pk=held.pk).update(state="running", allocated_milli=1500)
    Cluster.objects.update(is_reachable=False)
    lines = read(client).splitlines()
    assert f'trainyard_project_gpus_allocated{{project="{cast.other.name}"}} 1.5' in lines
    assert f'trainyard_jobs{{project="{job.project.name}",state="queued"}} 1' in lines
    assert f'trainyard_queue_oldest_seconds{{project="{cast.other.name}"}} 0' in lines
    assert any(line.startswith("trainyard_cluster_reachable{") and line.endswith(" 0") for line in lines)
    assert any(line.startswith("trainyard_cluster_gpus{") and line.endswith(" 16") for line in lines)


def test_the_questions_do_not_grow_with_jobs(
    client: Client,
    cast: Cast,
    django_assert_num_queries: Callable[[int], AbstractContextManager[object]],
) -> None:
    for number in range(5):
        make_job(cast.project, f"job-{number}", gpus=1)
    with django_assert_num_queries(8):
        read(client)
