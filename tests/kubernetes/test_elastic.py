"""An elastic job on the real node: torch workers that grow, shrink and lose one of them, and no step with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from controlplane.access import SYSTEM
from jobs.kinds.attempt_outcome import BACKOFF_SECONDS
from jobs.models import Generation, Job, Pod
from jobs.scaling import scale_job
from tests.builders import make_job
from tests.kube import KubeCluster
from tests.kubernetes.by_hand import Yard
from tests.waiting import slowness
from tools.kube.parts import IMAGE

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
# Some minutes: every test ends it before.
ENDLESS = {"EPOCHS": "100000", "SAMPLES": "256", "BATCH_SIZE": "4", "WORK_MS": "5", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def yard(kube_node: KubeCluster, tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(kube_node, tmp_path, default_image=IMAGE, image_pull_policy="Never")
    yield yard
    yard.close()


def elastic(yard: Yard, workers: int) -> Job:
    job = make_job(
        yard.project(quota=8),
        "el",
        kind="elastic",
        command=["python", "-m", "workloads.elastic.train"],
        env={**ENDLESS, "TRAINYARD_ELASTIC_FORM_SECONDS": str(5 * slowness())},
        min_workers=1,
        workers=workers,
        max_workers=4,
        cpus=0.1,
        memory_mib=1024,
        node_pool="train",
    )
    until_size(yard, job, workers)
    return job


def until_size(yard: Yard, job: Job, workers: int) -> None:
    """Wait until all members of the newest generation have entered it, and are so many."""

    def is_so() -> bool:
        found = Generation.objects.filter(attempt__job=job).order_by("number").last()
        return found is not None and found.switched_at is not None and len(found.members) == workers

    yard.until(is_so, f"{workers} workers", 120)


def test_it_loses_a_worker_and_grows_and_shrinks_without_a_lost_step(yard: Yard) -> None:
    job = elastic(yard, 2)
    leaver = Pod.objects.filter(job=job, released_at=None).latest("rank")
    killed = ["pkill", "-9", "-f", "workloads.elastic.train"]
    yard.kube.kubectl("-n", f"{yard.prefix}team", "exec", leaver.name, "--", *killed)
    until_size(yard, job, 1)
    # Growth after a loss has a back-off.
    yard.ahead = timedelta(seconds=BACKOFF_SECONDS[0])
    until_size(yard, job, 2)
    scale_job(job, 1, actor=SYSTEM)
    until_size(yard, job, 1)
    found = list(Generation.objects.filter(attempt__job=job).order_by("number"))
    assert {"loss", "grow", "shrink"} <= {one.cause for one in found}
    # One that the workers could not form in time is replaced before all have entered it, and has no counts.
    replaced = [after.cause for one, after in pairwise(found) if one.switched_at is None]
    assert set(replaced) <= {"loss", "reform"}
    entered = [one for one in found if one.switched_at is not None]
    assert entered[-1] == found[-1]
    assert {(one.lost_steps, one.repeated_steps) for one in entered} == {(0, 0)}
    steps = [one.step or 0 for one in entered]
    assert steps == sorted(steps)
    assert "127.0.0.1" not in json.dumps(found[-1].members)
