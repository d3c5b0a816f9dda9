"""Caches of datasets on a volume of the project: filled by a pod on the real node, read by jobs, and cleared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.engines.kubernetes.data_pod_objects import CACHE_POD
from controlplane.loop.wake import listen, stop_listening
from controlplane.models import Project
from datasets.actions.cache_locations import create_location, delete_location
from datasets.actions.cache_upkeep import keep_caches
from datasets.actions.caches import clear_cache
from datasets.models import Cache, CacheLocation
from datasets.storage.claims import cache_claim_name
from jobs.actions import delete_job
from jobs.models import Job
from tests.builders import make_counters, make_job
from tests.datasets import make_dataset, make_version
from tests.kube import KubeCluster
from tests.kubernetes import csi_rig
from tests.kubernetes.by_hand import Yard
from tests.live.server import running
from tests.waiting import wait_until
from tools.kube.parts import IMAGE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
GPU_NODE = {"nvidia.com/gpu.memory": "32768"}
SMALL = {"gpus": 0, "cpus": 0.1, "memory_mib": 128}
ONE = {"train/a.txt": "first", "b.txt": "second"}
TWO = {**ONE, "b.txt": "another"}
READS = "cat /data/train/a.txt /data/b.txt | grep -x {} && ! touch /data/x && ! rm -f /data/b.txt && ! chmod u+w /data"


@pytest.fixture
def yard(kube_node: KubeCluster, tmp_path: Path, own_lakes: Path) -> Iterator[Yard]:
    if reason := csi_rig.why_no_definitions():
        pytest.skip(reason)
    csi_rig.set_up(kube_node)
    make_counters()
    listen(nobody)
    with running(address=kube_node.host_address) as server:
        sent = {
            "cache_storage_class": csi_rig.CLASS,
            "cache_size": "64Mi",
            "control_url": f"http://{kube_node.host_address}:{server.port}",
            "default_image": IMAGE,
            "image_pull_policy": "Never",
            # the other node runs no containers
            "node_selector": GPU_NODE,
        }
        yard = Yard(kube_node, tmp_path, **sent)
        yard.cluster.settings = sent
        yard.cluster.save()
        yield yard
        yard.close()
    stop_listening(nobody)


def nobody() -> None:
    """Wake-ups arrive in this process, without Redis."""


def test_jobs_read_versions_that_a_pod_brought_once_and_cannot_change_them(yard: Yard) -> None:
    project = yard.project()
    dataset = make_dataset(project)
    make_version(dataset, ONE)
    first = reader(project, "first", 1, "firstsecond")
    yard.until_is(first, "queued", "waiting_for_data")
    yard.until_succeeded(first)
    cache = Cache.objects.get()
    assert (cache.state, cache.files_done, cache.bytes_done, cache.bytes_moved) == ("ready", 2, 11, 11)
    assert cache.sharing == "copy"
    assert (cache.location.project, cache.location.used_bytes) == (project, 11)

    make_version(dataset, TWO)
    second = reader(project, "second", 2, "firstanother")
    yard.until_succeeded(second)
    newer = Cache.objects.get(version__number=2)
    assert newer.bytes_moved == len("another")
    assert newer.location.used_bytes == 11 + len("another")

    clear_cache(cache, actor=SYSTEM)
    yard.until(lambda: not Cache.objects.filter(pk=cache.pk).exists(), "its end", 60)
    location = CacheLocation.objects.get()
    assert (location.kept_keys, location.used_bytes) == ([str(newer.version_id)], len("firstanother"))
    keep_caches(timezone.now())
    newer.refresh_from_db()
    assert newer.state == "ready"
    pods = ("get", "pods", "-A", "-o", "name")
    wait_until(lambda: CACHE_POD not in yard.kube.kubectl(*pods), 30, "the removal of the pod")


def test_a_location_of_one_node_is_filled_read_and_removed_there(yard: Yard) -> None:
    project = yard.project()
    yard.tick()
    values = {
        "name": "disk-a",
        "node_labels": GPU_NODE,
        "access_mode": "ReadWriteOnce",
        "room_bytes": 64 << 20,
    }
    location = create_location(yard.cluster, values, actor=SYSTEM)
    make_version(make_dataset(project), ONE)
    yard.until_succeeded(reader(project, "job", 1, "firstsecond"))
    cache = Cache.objects.get()
    assert (cache.state, cache.location.name) == ("ready", f"disk-a.{project.name}")
    claims = ("get", "pvc", "-n", f"{yard.prefix}{project.name}", "-o", "name")
    claim = f"persistentvolumeclaim/{cache_claim_name(location.pk)}"
    assert yard.kube.kubectl(*claims).split() == [claim]
    clear_cache(cache, actor=SYSTEM)
    yard.until(lambda: not Cache.objects.exists(), "its end", 60)
    delete_location(location, actor=SYSTEM)
    delete_job(Job.objects.get(), actor=SYSTEM)
    yard.until(lambda: claim not in yard.kube.kubectl(*claims), "the end of its claim", 60)


def reader(project: Project, name: str, version: int, words: str) -> Job:
    mounts = [{"dataset": "xray", "version": str(version), "mount_path": "/data", "cached": True}]
    command = ["sh", "-c", READS.format(words)]
    return make_job(project, name, command=command, datasets=mounts, **SMALL)
