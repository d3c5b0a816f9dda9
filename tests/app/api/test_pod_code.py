"""The code of a job for its pods: with the token of the attempt, while it lasts, and for no one else."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.test import Client

from controlplane.config.service_tokens import code_token
from controlplane.loop.podspecs import pod_spec, start_payloads
from controlplane.models import Cluster
from controlplane.scheduling.view import PodPlacement
from datasets.queries.code import code_root
from jobs.kinds.registry import KINDS
from jobs.models import Job
from tests.builders import make_job
from tests.cast import Cast
from tests.code_trees import make_tree, sha256

pytestmark = pytest.mark.django_db
FILES = {"train.py": b"print('epoch 1')\n", "lib/util.py": b"LR = 0.1\n"}


@pytest.fixture
def job(cast: Cast, settings: Any, tmp_path: Path) -> Job:
    """A job with code at its second attempt, on a cluster that is told where the control plane is."""
    settings.STATE_DIR = tmp_path
    sent = {"control_url": "http://control:8000"}
    Cluster.objects.filter(pk=cast.project.cluster_id).update(engine="kubernetes", settings=sent)
    cast.project.refresh_from_db()
    tree = make_tree(cast.project, FILES)
    job = make_job(cast.project, "train1", cast.ben, code={"tree": tree})
    Job.objects.filter(pk=job.pk).update(attempt=2)
    return Job.objects.select_related("project__cluster").get(pk=job.pk)


def fetch(path: str, token: str) -> Any:
    return Client().get(path, headers={"X-Trainyard-Code-Token": token})


def path_of(job: Job, attempt: int = 2) -> str:
    return f"/api/v1/pod-code/{job.pk}/{attempt}"


def test_what_a_pod_is_started_with_gets_the_tree(job: Job):
    shape = KINDS[job.kind].pods(job.spec)[0]
    [payload] = start_payloads(job, [shape], {0: PodPlacement(0, "node-a")}, {})
    code = pod_spec(payload).code
    assert code is not None
    assert code.url == f"http://control:8000{path_of(job)}"
    answer = fetch(code.url.removeprefix("http://control:8000"), code.token)
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/x-tar")
    with tarfile.open(fileobj=io.BytesIO(answer.getvalue())) as archive:
        assert {one.name for one in archive} == set(FILES)


def test_the_token_is_one_attempts_and_ends_with_the_job(job: Job):
    token = code_token(configured.SECRET_KEY, str(job.pk), 2)
    assert fetch(path_of(job), "").status_code == 404
    assert fetch(path_of(job), code_token(configured.SECRET_KEY, str(job.pk), 1)).status_code == 404
    assert fetch(path_of(job, 1), code_token(configured.SECRET_KEY, str(job.pk), 1)).status_code == 404
    assert fetch(path_of(job), token).status_code == 200
    Job.objects.filter(pk=job.pk).update(state="stopped")
    assert fetch(path_of(job), token).status_code == 404


def test_damaged_code_is_missing_from_the_second_request_on(job: Job):
    token = code_token(configured.SECRET_KEY, str(job.pk), 2)
    for path in code_root().rglob(sha256(FILES["train.py"])):
        path.chmod(0o600)
        path.write_bytes(b"x" * len(FILES["train.py"]))
    assert b"lib/util.py" in fetch(path_of(job), token).getvalue()
    answer = fetch(path_of(job), token)
    assert (answer.status_code, answer.json()["code"]) == (410, "code_missing")
