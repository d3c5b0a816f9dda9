"""Two cache locations in a cluster: pods that fill run on nodes of theirs, and jobs mount the claim of their node's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.access import SYSTEM
from controlplane.engines.kubernetes.data_pod_objects import cache_pod_name
from controlplane.models import Event, Project
from datasets.actions.cache_locations import create_location, delete_location
from datasets.actions.caches import location_for
from datasets.cache_volumes import volume_of
from datasets.claim_watching import check_claims
from datasets.models import Cache, CacheLocation, DatasetVersion
from datasets.storage.base import Budget, Cancelled
from datasets.storage.claims import CACHE_CLAIM, CacheTask, cache_claim_name
from jobs.models import Job, Pod
from tests.builders import make_job
from tests.datasets import make_dataset, make_version
from tests.kube import KubeCluster
from tests.kubernetes.by_hand import Yard, own, started
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.usefixtures("own_lakes")]


@pytest.fixture
def yard(kube: KubeCluster, tmp_path: Path) -> Iterator[Yard]:
    """Two nodes of four GPUs, the second in zone b, and a disk for each of two claims."""
    stated = {"cache_storage_class": "shared", "control_url": "http://control:8000", **own()}
    yard = Yard(kube, tmp_path, **stated)
    yard.cluster.settings = {**stated, "default_image": "nobody/runs:it"}
    yard.cluster.save()
    yard.add_node()
    yard.add_node(zone="b")
    for name in ("shared", "zone-b"):
        kube.must("POST", "/api/v1/persistentvolumes", disk(f"{yard.name}-{name}", name))
    yield yard
    yard.close()
    for name in ("shared", "zone-b"):
        kube.api("DELETE", f"/api/v1/persistentvolumes/{yard.name}-{name}")


def disk(name: str, storage_class: str) -> dict[str, Any]:
    spec = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Ti"},
        "hostPath": {"path": "/nowhere"},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def project(yard: Yard) -> Project:
    return yard.project(quota=8)


@pytest.fixture
def zone(yard: Yard, project: Project) -> CacheLocation:
    # The rows of the nodes are made.
    yard.tick()
    values = {"name": "zone-b", "node_labels": {"zone": "b"}, "storage_class": "zone-b"}
    return create_location(yard.cluster, values, actor=SYSTEM)


def node_of_its_pod(yard: Yard, volume: CacheLocation, claim: str) -> str:
    """Begin a fill, and return the node that its pod is bound to. A fake node runs no program, so it goes no
    further."""
    assert volume.project is not None
    path = f"/api/v1/namespaces/{yard.prefix}{volume.project.name}/pods/{cache_pod_name(claim)}"

    def node() -> str:
        _, pod = yard.kube.api("GET", path)
        return str((pod.get("spec") or {}).get("nodeName", ""))

    nodes: list[str] = []

    def is_bound() -> bool:
        nodes.append(node())
        return bool(nodes[-1])

    with pytest.raises(Cancelled):
        volume_of(volume).run(CacheTask("task", (), "tree"), Budget(120, is_bound))
    wait_until(lambda: yard.kube.api("GET", path)[0] == 404, what="the end of the pod")
    return nodes[-1]


def have(version: DatasetVersion, volume: CacheLocation) -> Cache:
    """As after a fill."""
    return Cache.objects.create(version=version, location=volume, state=Cache.READY, created_by="nobody")


def mounted(yard: Yard, job: Job) -> dict[str, str]:
    """The claim that each pod of a job mounts its data from, by node."""
    found = {}
    for pod in Pod.objects.filter(job=job).select_related("node"):
        volumes = yard.kube.must("GET", yard.path_of(job, pod.rank))["spec"]["volumes"]
        claims = [
            one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one
        ]
        assert pod.node is not None
        [found[pod.node.name]] = claims
    return found


def test_each_location_is_filled_on_its_nodes_and_mounted_there(
    yard: Yard, project: Project, zone: CacheLocation
) -> None:
    default, other = yard.nodes
    version = make_version(make_dataset(project), {"a": "one"})
    at_zone, at_rest = location_for(yard.cluster, project, "zone-b"), location_for(yard.cluster, project)
    claim = cache_claim_name(zone.pk)
    assert node_of_its_pod(yard, at_zone, claim) == other
    assert node_of_its_pod(yard, at_rest, CACHE_CLAIM) == default

    have(version, at_zone)
    mounts = [{"dataset": "xray", "mount_path": "/data"}]
    near = make_job(project, "near", datasets=mounts)
    started(yard, near)
    assert mounted(yard, near) == {other: claim}
    assert near.message.endswith("Placed where xray@1 is cached: zone-b.")

    have(version, at_rest)
    gang = make_job(project, "gang", gpus=3, workers=2, datasets=mounts)
    started(yard, gang)
    assert mounted(yard, gang) == {default: CACHE_CLAIM, other: claim}

    Cache.objects.all().delete()
    delete_location(zone, actor=SYSTEM)
    path = f"/api/v1/namespaces/{yard.prefix}{project.name}/persistentvolumeclaims/{claim}"

    def is_deleted() -> bool:
        status, found = yard.kube.api("GET", path)
        return status == 404 or "deletionTimestamp" in found["metadata"]

    yard.until(is_deleted, "the end of its claim")


def test_a_claim_deleted_in_the_cluster_is_lost_at_its_location_alone(
    yard: Yard, project: Project, zone: CacheLocation
) -> None:
    at_zone, at_rest = location_for(yard.cluster, project, "zone-b"), location_for(yard.cluster, project)
    claim = cache_claim_name(zone.pk)
    for volume, name in ((at_zone, claim), (at_rest, CACHE_CLAIM)):
        assert node_of_its_pod(yard, volume, name)
        CacheLocation.objects.filter(pk=volume.pk).update(kept_keys=["tree"], used_bytes=1)
    path = f"/api/v1/namespaces/{yard.prefix}{project.name}/persistentvolumeclaims/{claim}"
    yard.kube.must("DELETE", path)

    def is_lost() -> bool:
        check_claims()
        return not CacheLocation.objects.get(pk=at_zone.pk).kept_keys

    yard.until(is_lost, "the loss of its claim")
    [event] = Event.objects.filter(kind="cache_location.lost")
    assert event.data == {"location": at_zone.name, "claim": claim}
    assert CacheLocation.objects.get(pk=at_rest.pk).kept_keys == ["tree"]
