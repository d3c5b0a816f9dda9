"""Measure how long gradient all-reduces take in each step."""

import time
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

Mark = Any  # seconds, or an event of the device


class AllReduceTime:
    """Seconds per step during which at least one all-reduce is running. It may overlap with the backward
    pass, so it is an upper bound of the cost of communication."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[Mark, Mark]] = []

    def watch(self, net: DistributedDataParallel) -> None:
        """Measure all further steps of this network; its gradients are averaged as before."""
        net.register_comm_hook(None, self._averaged)

    def take_seconds(self) -> float:
        """Return during how many seconds since the last call at least one all-reduce was running; overlapping
        ones count once."""
        spans, self._spans = self._spans, []
        if not spans:
            return 0.0
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        origin = spans[0][0]
        return covered([(_between(origin, start), _between(origin, end)) for start, end in spans])

    def _averaged(self, _state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        start = self._mark()
        buffer = bucket.buffer().div_(distributed.get_world_size())
        future = distributed.all_reduce(buffer, async_op=True).get_future()

        def done(finished: torch.futures.Future[Any]) -> Tensor:
            self._spans.append((start, self._mark()))
            tensor: Tensor = finished.value()[0]
            return tensor

        averaged: torch.futures.Future[Tensor] = future.then(done)
        return averaged

    def _mark(self) -> Mark:
        if self._device.type != "cuda":
            return time.perf_counter()
        make_event: Any = torch.cuda.Event
        event = make_event(enable_timing=True)
        event.record()
        return event


def covered(spans: list[tuple[float, float]]) -> float:
    """Return the total length that (start, end) spans cover; overlaps count once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _between(start: Mark, end: Mark) -> float:
    """Return the seconds between two marks, by the clock or by CUDA events."""
    if isinstance(start, float):
        return float(end) - start
    return float(start.elapsed_time(end)) / 1000
