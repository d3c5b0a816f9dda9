"""Telemetry of a cluster that measures nothing: what pods say in their progress lines, for as long as it is fresh."""

import json
from datetime import timedelta

import pytest

from controlplane.engines.base import USAGE
from controlplane.telemetry import collect as collecting
from controlplane.telemetry.collect import collect
from jobs.models import Job, Pod
from tests.builders import make_job, make_project
from tests.loop.plant import Plant


@pytest.fixture
def plant(db):
    plant = Plant()
    plant.engine.capabilities = plant.engine.capabilities - {USAGE}
    collecting._memories.clear()
    yield plant
    plant.close()


def speak(plant: Plant, pod: Pod, utilization: float, memory_mib: int) -> None:
    gauges = {"step": 1, "gpu_utilization": utilization, "gpu_memory_mib": memory_mib}
    plant.engine.print_line(pod.name, json.dumps({"trainyard": 1, **gauges}))


def start(plant: Plant, **fields) -> Pod:
    job = make_job(make_project(), **fields)
    plant.settle()
    return Pod.objects.get(job=job)


def devices(pod: Pod) -> list[tuple[float | None, int | None]]:
    held = pod.allocations.order_by("device__index")
    return list(held.values_list("device__utilization", "device__memory_used_mib"))


def test_what_a_pod_says_counts_for_it_and_its_devices(plant):
    pod = start(plant, gpus=2)
    collect(plant.engine, plant.cluster, plant.clock())
    assert devices(pod) == [(None, None)] * 2
    speak(plant, pod, 0.75, 8000)
    collect(plant.engine, plant.cluster, plant.clock())
    assert devices(pod) == [(0.75, 4000)] * 2
    pod.refresh_from_db()
    assert (pod.gpu_utilization, pod.gpu_memory_mib) == (0.75, 8000)
    assert Job.objects.get().gpu_utilization == 0.75


def test_sharers_add_up_and_silence_is_not_idleness(plant):
    pod = start(plant, gpus=0.5)
    speak(plant, pod, 0.8, 1000)
    collect(plant.engine, plant.cluster, plant.clock())
    assert devices(pod) == [(0.4, 1000)]
    plant.clock.advance(timedelta(seconds=61).total_seconds())
    collect(plant.engine, plant.cluster, plant.clock())
    assert devices(pod) == [(None, None)]
    pod.refresh_from_db()
    assert pod.gpu_utilization is None
