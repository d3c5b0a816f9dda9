"""Form a process group: over NCCL if each rank has a GPU of its own, else over gloo.

NCCL refuses two ranks on one GPU, which is what pods with shares of a GPU are; gloo copies their tensors through main
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import distributed
from torch._C._distributed_c10d import Store

NCCL, GLOO = "nccl", "gloo"


def form_group(
    store: Store, rank: int, size: int, device: torch.device, timeout: timedelta | None = None
) -> None:
    """Join the process group of `size` ranks that share `store`, over NCCL or gloo as `backend_of` chooses.
    Blocks until all ranks have joined. `timeout`: limit of each collective call, None for torch's default."""
    backend = backend_of(_gpus(store, rank, size, device))
    distributed.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=size,
        timeout=timeout,
        device_id=device if backend == NCCL else None,
    )


def backend_of(gpus: Sequence[str]) -> str:
    """Return NCCL if every rank has a GPU of its own, else gloo. `gpus`: the UUID of each rank's GPU, empty for ranks
    on CPUs."""
    return NCCL if gpus and len(set(gpus)) == len(gpus) else GLOO


def _gpus(store: Store, rank: int, size: int, device: torch.device) -> list[str]:
    """Return the UUIDs of all ranks' GPUs, by rank; empty on CPUs. Waits until every rank has written its own to the
    store."""
    if device.type != "cuda":
        return []
    store.set(f"gpu-{rank}", str(torch.cuda.get_device_properties(device).uuid))
    return [store.get(f"gpu-{other}").decode() for other in range(size)]
