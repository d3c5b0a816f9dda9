"""Ways to place whole gangs: those that are counted node by node are the same as those that are tried one by one."""

from __future__ import annotations

import random
from itertools import islice

from controlplane.scheduling import together
from controlplane.scheduling.fit import Request
from controlplane.scheduling.initial_capacity import open_capacity
from tests.pure.scheduling.builders import job, node, project, running, view


def test_ways_on_whole_devices_are_those_of_taking_pod_by_pod():
    for seed in range(60):
        dice = random.Random(seed)
        room, request = _drawn(dice)
        nodes = together._nodes_with(request.whole_devices, room, room.parts_of((), ()))
        nodes.sort(key=lambda node: (node.whole, node.milli_cpus, node.order))
        orders = [node.order for node in nodes]
        tried = list(islice(together._rest_of_gang(request, room, orders, []), together.MAX_WAYS))
        assert list(together._gangs(request, room)) == tried, seed


def _drawn(dice):
    names = [f"n{at}" for at in range(dice.randint(1, 4))]
    held = [
        running(job(f"r{place}{at}", "p", 1, milli_cpus=dice.choice((0, 4000))), (name, [at]), started_at=1)
        for place, name in enumerate(names)
        for at in range(6)
        if dice.random() < 0.3
    ]
    cluster = view([node(name, 6, milli_cpus=20_000) for name in names], [project("p")], held)
    gpus, pods = dice.randint(0, 3) * 1000, dice.randint(1, 4)
    return open_capacity(cluster).now, Request(gpus, None, pods, dice.choice((0, 5000)), 0, ())
