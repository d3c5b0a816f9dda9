"""Which pods are compared again: also one that another process has written meanwhile."""

from dataclasses import replace

import pytest
from django.utils import timezone

from controlplane.engines.base import PodReport
from controlplane.loop.cluster_context import context_of
from controlplane.loop.pod_diff import DiffCache
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
