"""Devices that nothing measures, as on a cluster without Prometheus: neither idle nor busy."""

import pytest

from controlplane.models import Device
from jobs.overview_state import read_overview
from tests.cast import Cast


@pytest.mark.django_db
def test_what_is_not_measured_is_not_idle(cast: Cast):
    Device.objects.update(allocated_milli=1000)
    totals = read_overview(0).state["totals"]["all"]
    assert totals["gpus_allocated"] == 16
    assert (totals["gpus_idle_allocated"], totals["gpu_utilization"]) == (0, None)
    assert totals["gpu_memory_utilization"] is None


@pytest.mark.django_db
def test_the_mean_is_over_what_is_measured(cast: Cast):
    first, second, *_ = Device.objects.order_by("pk")
    Device.objects.filter(pk=first.pk).update(utilization=0.0, memory_used_mib=0, allocated_milli=1000)
    Device.objects.filter(pk=second.pk).update(utilization=0.5, memory_used_mib=0, allocated_milli=1000)
    totals = read_overview(0).state["totals"]["all"]
    assert (totals["gpus_idle_allocated"], totals["gpu_utilization"]) == (1, 0.25)
