"""Resources of a cluster's nodes beside GPUs: jobs go where they are, wait for them, and are told where none are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.models import Node
from jobs.models import Job, Pod
from tests.builders import make_job
from tests.kube import KubeCluster
from tests.kubernetes.by_hand import Yard, own, started

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
EFA = "vpc.amazonaws.com/efa"


@pytest.fixture
def yard(kube: KubeCluster, tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(kube, tmp_path, **own())
    yield yard
    yard.close()


def node_of(job: Job) -> str:
    return Pod.objects.get(job=job).node.name


def test_jobs_go_where_their_resources_are_and_wait_for_them(yard: Yard) -> None:
    plain, fabric = yard.add_node(), yard.add_node(resources={EFA: "4", "hugepages-2Mi": "1Gi"})
    project = yard.project(quota=8)
    first = make_job(project, "first", extra_resources={EFA: "2", "hugepages-2Mi": "512Mi"})
    second = make_job(project, "second", extra_resources={EFA: "2"})
    third = make_job(project, "third", extra_resources={EFA: "1"})
    without = make_job(project, "without", gpus=4)
    started(yard, first, second, without)
    assert (node_of(first), node_of(second), node_of(without)) == (fabric, fabric, plain)
    yard.until_is(third, "queued", "cluster_full")
    assert third.details["resource"] == EFA
    yard.kube.end_pod(f"{yard.prefix}{project.name}", Pod.objects.get(job=first).name)
    started(yard, third)
    assert node_of(third) == fabric


def test_what_no_node_has_is_impossible_and_holds_no_gpu(yard: Yard) -> None:
    yard.add_node(resources={EFA: "4"})
    job = make_job(yard.project(), extra_resources={EFA: "8"})
    yard.until_is(job, "queued", "spec_impossible")
    assert f"has 8 {EFA}. The largest that fits is 4 {EFA}" in job.message
    assert not Pod.objects.exists()


def test_a_node_that_gets_a_resource_later_takes_the_job(yard: Yard) -> None:
    name = yard.add_node()
    job = make_job(yard.project(), extra_resources={EFA: "1"})
    yard.until_is(job, "queued", "spec_impossible")
    status = {"status": {"capacity": {EFA: "1"}, "allocatable": {EFA: "1"}}}
    yard.kube.must("PATCH", f"/api/v1/nodes/{name}/status", status, kind="application/merge-patch+json")
    yard.look_at_nodes()
    started(yard, job)
    assert Node.objects.get(name=name).extras[EFA] == 1
