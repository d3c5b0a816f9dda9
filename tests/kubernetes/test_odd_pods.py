"""Pods in our namespaces that make no sense, or that somebody else made to look like ours: the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.engines import base
from controlplane.engines.kubernetes import cluster_cache, manifests, names
from controlplane.loop.reconcile import LONGEST_NAME
from controlplane.models import Command
from jobs.actions import stop_job
from jobs.models import Pod
from tests.builders import make_job
from tests.kube import MERGE, KubeCluster
from tests.kubernetes.by_hand import Yard, actor, devices, own, started

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


@pytest.fixture
def yard(kube: KubeCluster, tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(kube, tmp_path, **own())
    yard.add_node(gpus=2)
    yield yard
    yard.close()


def test_a_pod_that_cannot_be_read_keeps_its_gpu_and_stops_nobody(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = yard.project()
    odd, sane = make_job(project, "odd"), make_job(project, "sane")
    started(yard, odd, sane)
    held = devices(odd)
    edited = {"metadata": {"annotations": {names.DEVICES: "\x00", "odd": "\u202e\x00"}}}
    yard.kube.must("PATCH", yard.path_of(odd), edited, kind=MERGE)
    told = report_fails_for(str(odd.pk), monkeypatch)
    yard.until(lambda: Pod.objects.get(job=odd).reason == base.POD_UNREADABLE, "the finding")
    assert told[0] in Pod.objects.get(job=odd).message
    waiting = make_job(project, "waiting")
    stop_job(sane, actor=actor())
    started(yard, waiting)
    for job, state in ((odd, "running"), (sane, "stopped")):
        job.refresh_from_db()
        assert job.state == state
    assert (devices(odd), len({*devices(odd), *devices(waiting)})) == (held, 2)
    monkeypatch.undo()
    yard.kube.must("PATCH", yard.path_of(odd), {"metadata": {"annotations": {"odd": None}}}, kind=MERGE)
    yard.until(lambda: Pod.objects.get(job=odd).reason == "", "the end of it")


def report_fails_for(job_id: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No API server tells what we cannot read: that it did is played."""
    words, read = ["a field of tomorrow"], cluster_cache.pod_report

    def fails(raw: Any, *rest: Any) -> base.PodReport:
        if raw["metadata"]["labels"][names.JOB_ID] == job_id:
            raise ValueError(words[0])
        return read(raw, *rest)

    monkeypatch.setattr(cluster_cache, "pod_report", fails)
    return words


@pytest.mark.parametrize("name", ["1-1-0", "n" * 200, "00000000-0000-4000-8000-000000000000-1-0"])
def test_a_pod_that_poses_as_ours_is_ended_and_stops_nobody(yard: Yard, name: str) -> None:
    project = yard.project()
    labels = {names.INSTALLATION: yard.name, names.PROJECT: project.name}
    posing = manifests.tombstone("x", project.name, yard.engine._profile)
    posing["metadata"] = {"name": name, "labels": labels}
    posing["spec"]["schedulingGates"] = [{"name": "example.org/x"}]
    pods = f"/api/v1/namespaces/{yard.prefix}{project.name}/pods"
    yard.kube.must("POST", pods, posing)
    job = make_job(project)
    started(yard, job)
    if len(name) <= LONGEST_NAME:
        yard.until(lambda: yard.kube.api("GET", f"{pods}/{name}")[0] == 404, "its end")
    else:
        assert [one.name for one in yard.engine.pods() if not one.node] == [name]
        yard.kube.must("DELETE", f"{pods}/{name}?gracePeriodSeconds=0")
    assert not Command.objects.filter(state=Command.FAILED).exists()
