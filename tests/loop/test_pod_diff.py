"""Which pods are compared again: also one that another process has written meanwhile."""

from dataclasses import replace
from uuid import UUID

import pytest
from django.utils import timezone

from controlplane.engines.base import PodReport
from controlplane.loop import pod_diff
from controlplane.loop.cluster_context import context_of
from controlplane.loop.pod_diff import DiffCache, PodKey
from controlplane.loop.reconcile import reconcile
from jobs.models import Pod
from tests.builders import make_job, make_project

pytestmark = pytest.mark.django_db


def test_two_processes_that_take_turns_leave_no_row_behind(plant, monkeypatch):
    make_job(make_project())
    plant.settle()
    report = PodReport(Pod.objects.get().name, "running", "", "", started_at=timezone.now())

    def lead(memory: DiffCache, message: str, compared: int) -> None:
        context_of(plant.cluster).diffs = memory
        monkeypatch.setattr(plant.engine, "pods", lambda: (replace(report, message=message),))
        for _ in range(compared):
            reconcile(plant.cluster, plant.engine, timezone.now())
        assert Pod.objects.get().message == message

    mine = DiffCache()
    lead(mine, "first", 2)
    lead(DiffCache(), "second", 1)
    lead(mine, "first", 1)


def test_unchanged_pods_are_compared_again_in_parts(plant, monkeypatch):
    seconds = [1000.0]
    monkeypatch.setattr(pod_diff.time, "monotonic", lambda: seconds[-1])
    pods = [Pod(pk=key, name=f"pod-{key}", state="running", job_id=UUID(int=key)) for key in range(1, 241)]
    reports = {pod.name: PodReport(pod.name, "running", "", "") for pod in pods}
    held = {pod.name: PodKey(pod.pk, pod.name, "running", "", "", pod.job_id) for pod in pods}
    cache, again = DiffCache(), []
    assert cache.differing(plant.cluster, held, reports) == [pod.pk for pod in pods]
    cache.note(pods, reports)
    for second in (1001.0, 1001.5, 1005.0, 1059.0, 1060.0, 9000.0):
        seconds.append(second)
        due = cache.differing(plant.cluster, held, reports)
        cache.note([pods[key - 1] for key in due], reports)
        again.append(len(due))
    assert again == [4, 0, 16, 216, 4, 240]
