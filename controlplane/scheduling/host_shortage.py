"""How many pods fit on a node once some jobs are gone, and what it lacks beside devices for more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controlplane.scheduling.capacity import Amounts, NodeCapacity
from controlplane.scheduling.fit import Request, amount_of, host_needs, pods_in
from controlplane.scheduling.victims import Candidate


def missing_on(
    request: Request, node: NodeCapacity, victims: Iterable[Candidate], pods: int
) -> dict[str, int]:
    """What the node lacks beside devices for so many pods once these jobs have gone, by need."""
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
    """How much of what is missing its going gives, 1 for all of one need."""
    return sum(min(1.0, _given(victim, node, need) / amount) for need, amount in missing.items())


def pods_on(request: Request, node: NodeCapacity) -> int:
    """How many pods of this kind fit on the node as it is."""
    return pods_in(request, node, node.free, node.milli_cpus, node.memory_mib, node.extras)


def pods_after(request: Request, node: NodeCapacity, victims: Iterable[Candidate]) -> int:
    """How many pods of this kind fit on the node without these jobs."""
    free = node.free.copy()
    milli_cpus, memory_mib, extras = node.milli_cpus, node.memory_mib, dict(request.extras and node.extras)
    for victim in victims:
        pods = sum(placement.node == node.name for placement in victim.placements)
        milli_cpus += pods * victim.job.milli_cpus
        memory_mib += pods * victim.job.memory_mib
        for name, amount in victim.job.extras:
            extras[name] = extras.get(name, 0) + pods * amount
        for index, milli_gpus in victim.on_node(node.name):
            if index in node.indexes:
                free[node.indexes.index(index)] += milli_gpus
    return pods_in(request, node, free, milli_cpus, memory_mib, extras)
