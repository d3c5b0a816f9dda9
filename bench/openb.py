"""The packing of openb: pods of a real cluster arrive one at a time, never leave, and are dropped if they do not fit.
The same experiment as in FGD (ATC'23), on `place`."""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from controlplane.scheduling.capacity import FreeCapacity
from controlplane.scheduling.fit import Request, place
from controlplane.scheduling.fragmentation import Gradient, popular
from controlplane.scheduling.initial_capacity import open_capacity
from controlplane.scheduling.view import ClusterView, DeviceView, NodeView

TUNE = 1.3
SEEDS = range(42, 52)


def allocation(folder: Path, seed: int, *, is_packed: bool = False) -> tuple[float, float]:
    """Return (allocated, fragmented) percent of the cluster's GPUs after pods requesting 100 % of them have
    arrived, in an order drawn with `seed`. Places are chosen by the fragmentation gradient or, if `is_packed`, by
    the tightest fit."""
    nodes, pods = read_nodes(folder / "nodes_gpu.csv"), read_pods(folder / "pods_default.csv")
    capacity = sum(len(node.devices) for node in nodes) * 1000
    room = open_capacity(ClusterView("openb", 0, nodes)).now
    if not is_packed:
        room.scorer = Gradient(popular(Counter(pods)))
    asked = 0
    for request in arrivals(pods, capacity, random.Random(seed)):
        asked += request.milli_gpus
        placements = place(request, room)
        for placement in placements or ():
            room.take(placement, request)
        if asked >= capacity:
            break
    free = room.free_milli_gpus()
    return 100 * (capacity - free) / capacity, 100 * fragmented(room, pods) / capacity


def arrivals(pods: Sequence[Request], capacity: int, dice: random.Random) -> list[Request]:
    """Return the pods and repetitions of them drawn by `dice`, shuffled, that together request TUNE times
    `capacity` (milli-GPUs)."""
    found, asked = list(pods), sum(pod.milli_gpus for pod in pods)
    while asked < TUNE * capacity:
        found.append(dice.choice(pods))
        asked += found[-1].milli_gpus
    dice.shuffle(found)
    return found


def fragmented(room: FreeCapacity, pods: Sequence[Request]) -> float:
    """Return how many free milli-GPUs of `room` are useless to a pod of `pods`, on average over the pods."""
    gradient = Gradient(popular(Counter(pods)))
    return sum(map(gradient.useless_on, room.nodes))


def read_nodes(path: Path) -> tuple[NodeView, ...]:
    """Return the nodes with GPUs of a CSV file of openb."""
    with path.open() as lines:
        return tuple(
            NodeView(
                row["sn"], "default", tuple(DeviceView(index, 16_384) for index in range(int(row["gpu"]))),
                int(row["cpu_milli"]), int(row["memory_mib"]),
            )
            for row in csv.DictReader(lines)
        )  # fmt: skip


def read_pods(path: Path) -> list[Request]:
    """Return the resource request of each pod of a CSV file of openb."""
    with path.open() as lines:
        return [
            Request(
                int(row["gpu_milli"]) if int(row["num_gpu"]) == 1 else 1000 * int(row["num_gpu"]),
                None, 1, int(row["cpu_milli"]), int(row["memory_mib"]), (),
            )
            for row in csv.DictReader(lines)
        ]  # fmt: skip
