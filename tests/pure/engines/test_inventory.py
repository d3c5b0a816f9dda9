"""The machine's own GPUs through NVML, played by a driver of the test."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from controlplane.engines.base import DeviceShare, EngineUnreachable, PodSpec
from controlplane.engines.local.engine import LocalEngine
from controlplane.engines.local.environment import device_variables
from controlplane.engines.local.inventory import NvmlInventory

GIB = 1024**3


class NVMLError(Exception):
    """What the driver's library raises."""


def driver(**changes: object) -> SimpleNamespace:
    """Two GPUs of 80 and 40 GiB, the first 75 % busy with 10 GiB in use."""
    functions = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda handle: "H200",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
            total=(80 - 40 * handle) * GIB, used=(10 - 10 * handle) * GIB
        ),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=75 - 75 * handle),
    }
    return SimpleNamespace(**{**functions, **changes})


def fail(*arguments: object) -> None:
    raise NVMLError("driver not loaded")


def test_the_machine_is_one_node_with_its_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    (node,) = NvmlInventory().nodes()
    assert [(d.index, d.uuid, d.model, d.memory_mib) for d in node.devices] == [
        (0, "GPU-0", "H200", 81920),
        (1, "GPU-1", "H200", 40960),
    ]
    assert node.milli_cpus >= 1000
    assert node.memory_mib > 100


def test_usage_is_what_the_driver_says(monkeypatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    reports = LocalEngine({"nodes": "nvml"}, tmp_path).usage()
    assert [(r.device_index, r.utilization, r.memory_used_mib) for r in reports] == [
        (0, 0.75, 10240),
        (1, 0.0, 0),
    ]


def test_a_reading_that_the_driver_refuses_is_unknown_and_not_zero(monkeypatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "pynvml", driver(nvmlDeviceGetUtilizationRates=fail))
    assert [r.utilization for r in LocalEngine({"nodes": "nvml"}, tmp_path).usage()] == [None, None]


def test_a_machine_without_a_driver_is_unreachable_in_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", driver(nvmlInit=fail))
    with pytest.raises(EngineUnreachable, match="driver not loaded"):
        NvmlInventory().nodes()


@pytest.mark.parametrize(
    ("is_simulated", "has_real_gpus", "visible", "nvidia"),
    [(False, True, "GPU-1", "GPU-1"), (True, False, "1", "1"), (True, True, "", "void")],
)
def test_cuda_sees_the_pods_devices_and_no_others(
    monkeypatch, is_simulated: bool, has_real_gpus: bool, visible: str, nvidia: str
):
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    (node,) = NvmlInventory().nodes()
    spec = PodSpec("p", "j", "job", "team", 1, 0, node.name, devices=(DeviceShare(1, 250, 10240),))
    variables = device_variables(spec, node, is_simulated, has_real_gpus)
    assert variables["CUDA_VISIBLE_DEVICES"] == visible
    assert variables["NVIDIA_VISIBLE_DEVICES"] == nvidia
    assert variables["TRAINYARD_GPU_SHARE"] == "0.25"
    assert variables["TRAINYARD_GPU_MEMORY_MIB"] == "10240"
