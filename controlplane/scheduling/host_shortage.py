"""Count the pods that fit on a node once victims are gone, and which CPUs, memory and extra resources are missing for
more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controlplane.scheduling.capacity import Amounts, NodeCapacity
from controlplane.scheduling.fit import Request, amount_of, host_needs, pods_in
from controlplane.scheduling.victims import Candidate


def missing_on(
    request: Request, node: NodeCapacity, victims: Iterable[Candidate], pods: int
) -> dict[str, int]:
    """Return what the node lacks for `pods` pods once the victims are gone, by name, in the units of `fit.amount_of`;
    {} if nothing. GPUs are not counted."""
    short = {need: pods * amount_of(request, need) for need in host_needs(request)}
    for need in short:
        given = sum(_given(victim, node, need) for victim in victims)
        short[need] -= _on(node, need) + given
    return {need: amount for need, amount in short.items() if amount > 0}


def _on(node: NodeCapacity, need: str) -> int:
    return amount_of(Amounts(node.milli_cpus, node.memory_mib, tuple(node.extras.items())), need)


def _given(victim: Candidate, node: NodeCapacity, need: str) -> int:
    pods = sum(placement.node == node.name for placement in victim.placements)
    return pods * amount_of(victim.job, need)


def part_of(missing: Mapping[str, int], victim: Candidate, node: NodeCapacity) -> float:
    """Return how much of the shortage on the node the victim would free, as the sum of fractions over the `missing`
    resources: 1.0 is the whole shortage of one resource."""
    return sum(min(1.0, _given(victim, node, need) / amount) for need, amount in missing.items())


def pods_after(request: Request, node: NodeCapacity, victims: Iterable[Candidate]) -> int:
    """Return how many pods of the request fit on the node once the victims are gone, up to the gang's size."""
    free = node.free.copy()
    milli_cpus, memory_mib, extras = node.milli_cpus, node.memory_mib, dict(request.extras and node.extras)
    name = node.name
    for victim in victims:
        pods = sum([placement.node == name for placement in victim.placements])
        milli_cpus += pods * victim.job.milli_cpus
        memory_mib += pods * victim.job.memory_mib
        for extra, amount in victim.job.extras:
            extras[extra] = extras.get(extra, 0) + pods * amount
        for index, milli_gpus in victim.on_node(name):
            if index in node.indexes:
                free[node.indexes.index(index)] += milli_gpus
    return pods_in(request, node, free, milli_cpus, memory_mib, extras)
