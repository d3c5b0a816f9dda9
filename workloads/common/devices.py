"""Select the device on which this pod trains, and limit its memory to the pod's share."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from workloads.common.progress import Meter
from workloads.common.rank_info import rank_info_from

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The device, and functions that read this process's use of it. `utilization`: 0 to 1 since the last call."""

    device: torch.device
    meter: Meter

    def utilization(self) -> float | None:
        if self.device.type != "cuda":
            return self.meter.utilization()
        try:
            return float(torch.cuda.utilization(self.device)) / 100
        except (ModuleNotFoundError, RuntimeError):
            # The driver's library does not report it.
            return None

    def memory_mib(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.memory_reserved(self.device)) // MIB
        return self.meter.memory_mib()


def take_device() -> DeviceUse:
    """Return this worker's GPU of the pod (the first if there is one worker), limited to the pod's share of
    its memory; the CPU if the GPU is simulated or there is none.

    The share of a real GPU (TRAINYARD_GPU_MEMORY_MIB) becomes torch's own limit: an allocation above it fails
    in this process instead of in another pod.
    """
    cpus = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(cpus)
    if not os.environ.get("TRAINYARD_GPU_DEVICES", "0") or not torch.cuda.is_available():
        return DeviceUse(torch.device("cpu"), Meter(cpus))
    # An MPI rank in a pod with one device sees only that device.
    index = rank_info_from(os.environ).local_rank % torch.cuda.device_count()
    device = torch.device("cuda", index)
    # NCCL's object collectives use the current device, which must be this rank's own.
    torch.cuda.set_device(device)
    fraction = memory_fraction(torch.cuda.get_device_properties(device).total_memory // MIB)
    if fraction < 1:
        torch.cuda.set_per_process_memory_fraction(fraction, device)
    return DeviceUse(device, Meter(cpus))


def memory_fraction(total_mib: int) -> float:
    """Return the pod's share of the memory of a device with `total_mib` MiB; 1 if it has all of it or no limit is
    known."""
    granted_mib = int(os.environ.get("TRAINYARD_GPU_MEMORY_MIB", "0") or 0)
    return min(1.0, granted_mib / total_mib) if granted_mib > 0 else 1.0
