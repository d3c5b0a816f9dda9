"""Artifacts of clusters that hand out copies of their jobs' output."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Cluster, Command
from datasets.actions.artifacts import keep_artifacts
from datasets.models import Artifact
from datasets.outputs import FOLDER, MARGIN_BYTES
from datasets.queries.artifacts import output_refusal
from datasets.storage.base import Blocked, Budget
from datasets.storage.claims import OutputTask
from jobs.models import Job
from tests.artifacts import keep_output
from tests.builders import make_job
from tests.cast import Cast
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_lakes")]
STATED = {"work_storage_class": "nfs", "default_image": "python:3"}
BEST = {"path": "$TRAINYARD_CHECKPOINT_DIR/best", "name": "best", "when": "success"}


class Engine:
    """Hands out one file. `announced`: the bytes that it says will come."""

    def __init__(self) -> None:
        self.tasks: list[OutputTask] = []
        self.announced, self.refusal = 5, ""

    def outputs(self, project: str) -> "Engine":
        assert project == "team-a"
        return self

    def copy(
        self, task: OutputTask, target: Path, budget: Budget, report: Callable[[int, int, int, int], None]
    ) -> None:
        budget.check()
        assert not list(target.iterdir())
        self.tasks.append(task)
        if self.refusal:
            raise Blocked(self.refusal, "The job left no directory.", is_passing=False)
        report(0, 0, 1, self.announced)
        (target / "weights").write_text("12345")


@pytest.fixture
def engine(cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("django.conf.settings.STATE_DIR", tmp_path)
    Cluster.objects.filter(pk=cast.project.cluster_id).update(engine="kubernetes", settings=STATED)
    cast.project.refresh_from_db()
    engine = Engine()
    monkeypatch.setattr("datasets.outputs.engine_for", lambda cluster: engine)
    return engine


def kept(cast: Cast) -> Artifact:
    job = make_job(cast.project, "train1", cast.ben, artifacts=[BEST])
    Job.objects.filter(pk=job.pk).update(state="succeeded", attempt=1)
    keep_output()
    return Artifact.objects.get(job=job)


def test_a_copy_is_kept_and_removed_also_one_of_a_worker_that_died(
    engine: Engine, cast: Cast, tmp_path: Path
) -> None:
    leftover = tmp_path / FOLDER / "8b8a6d0e-6c67-4b6f-9a0c-0d6a5c1f2b3c"
    leftover.mkdir(parents=True)
    artifact = kept(cast)
    assert (artifact.state, artifact.files, artifact.size_bytes) == ("ready", 1, 5)
    assert engine.tasks == [OutputTask(str(artifact.pk), str(artifact.job_id), "best", True)]
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_more_than_the_limit_is_refused_when_it_is_announced(
    engine: Engine, cast: Cast, tmp_path: Path
) -> None:
    engine.announced = 1 << 60
    artifact = kept(cast)
    assert (artifact.state, artifact.reason) == ("failed", "artifact_too_large")
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_more_than_the_disk_has_free_is_refused_before_it_is_copied(
    engine: Engine, cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=MARGIN_BYTES + 4)
    monkeypatch.setattr("datasets.outputs.shutil.disk_usage", lambda path: free)
    job = make_job(cast.project, "train1", cast.ben, artifacts=[BEST])
    Job.objects.filter(pk=job.pk).update(state="succeeded", attempt=1)
    keep_artifacts()
    wait_until(carry_out_due, what="the try that is refused")
    artifact = Artifact.objects.get(job=job)
    assert (artifact.state, "5 B" in artifact.message) == ("keeping", True)
    assert list((tmp_path / FOLDER).iterdir()) == []
    # However long it takes until there is room.
    Command.objects.unfinished().update(not_before=timezone.now(), tries=1_000)
    wait_until(carry_out_due, what="another try that is refused")
    assert Artifact.objects.get(job=job).state == "keeping"
    free.free += 1
    Command.objects.unfinished().update(not_before=timezone.now())
    keep_output()
    artifact.refresh_from_db()
    assert (artifact.state, artifact.message) == ("ready", "")


def test_what_the_cluster_refuses_is_the_reason(engine: Engine, cast: Cast) -> None:
    engine.refusal = "output_missing"
    artifact = kept(cast)
    assert (artifact.state, artifact.reason) == ("failed", "output_missing")
    assert artifact.message == "The job left no directory."


def test_a_cluster_without_a_class_or_an_image_refuses_with_what_to_set(cast: Cast, api: Any) -> None:
    cluster = cast.project.cluster
    Cluster.objects.filter(pk=cluster.pk).update(engine="kubernetes", settings={})
    body = {"name": "t", "kind": "train", "image": "python:3", "artifacts": [BEST]}
    answer = api("ben").post("projects/team-a/jobs", body)
    assert answer.code == "artifacts_not_supported", answer.body
    assert "--set work_storage_class=CLASS --set code_image=IMAGE" in str(answer.body)
    cluster.engine, cluster.settings = "kubernetes", STATED
    assert output_refusal(cluster) == ""
