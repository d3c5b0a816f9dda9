"""The local engine's nodes: simulated ones from the settings, or this machine with its GPUs through NVML."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from controlplane.engines.base import DeviceReport, EngineUnreachable, NodeReport, UsageReport
from controlplane.engines.simulated import simulated_nodes

MIB = 1024 * 1024


class Inventory(Protocol):
    """The source of the local engine's nodes. `is_simulated`: their devices exist in the settings only."""

    is_simulated: bool

    def nodes(self) -> tuple[NodeReport, ...]: ...


class SimulatedInventory:
    is_simulated = True

    def __init__(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        self._nodes = simulated_nodes(nodes)

    def nodes(self) -> tuple[NodeReport, ...]:
        return self._nodes


class NvmlInventory:
    """This machine as one node, with its NVIDIA GPUs. Raises EngineUnreachable if the driver does not answer."""

    is_simulated = False

    def nodes(self) -> tuple[NodeReport, ...]:
        with _nvml() as nvml:
            devices = tuple(_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        name = platform.node().split(".")[0].lower() or "local"
        cpus = os.cpu_count() or 1
        return (NodeReport(name, "default", devices, cpus * 1000, _machine_memory_mib(), is_ready=True),)

    def readings(self) -> dict[int, UsageReport]:
        """Return the driver's measurements by device index. A utilisation that it does not measure (MIG) is None."""
        with _nvml() as nvml:
            return {index: _reading(nvml, index) for index in range(nvml.nvmlDeviceGetCount())}


def open_inventory(settings: Mapping[str, Any]) -> SimulatedInventory | NvmlInventory:
    nodes = settings["nodes"]
    return NvmlInventory() if nodes == "nvml" else SimulatedInventory(nodes)


def has_real_gpus() -> bool:
    """Return whether this machine has an NVIDIA driver, by its device file."""
    return os.path.exists("/dev/nvidiactl")


@contextmanager
def _nvml() -> Iterator[Any]:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise EngineUnreachable(f"NVML does not answer on this machine: {error}.") from error


def _device(nvml: Any, index: int) -> DeviceReport:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return DeviceReport(
        index,
        nvml.nvmlDeviceGetUUID(handle),
        nvml.nvmlDeviceGetName(handle),
        nvml.nvmlDeviceGetMemoryInfo(handle).total // MIB,
    )


def _reading(nvml: Any, index: int) -> UsageReport:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        utilization = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except nvml.NVMLError:
        # A GPU in MIG mode has no utilisation as a whole, so only its memory is reported.
        utilization = None
    return UsageReport("", index, utilization, nvml.nvmlDeviceGetMemoryInfo(handle).used // MIB)


def _machine_memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
