"""The fragmentation gradient: places that leave the usual pods the most GPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from controlplane.scheduling import fragmentation
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.fit import Request
from controlplane.scheduling.fragmentation import Gradient, popular
from controlplane.scheduling.initial_capacity import open_capacity
from tests.pure.scheduling.builders import job, node, nodes, project, running, view

SMALL = Request(1000, None, 1, 1000, 0, ())
LARGE = Request(8000, None, 1, 8000, 0, ())


def useless(*held, mix, cpus=64_000):
    room = open_capacity(view([replace(node("n0", 8), milli_cpus=cpus)], [project("p")], held)).now
    return Gradient(list(mix.items())).useless_on(room.nodes[0])


def test_what_is_too_little_for_a_pod_is_useless_to_it():
    half = running(job("r0", "p", 4), ("n0", range(4)))
    assert useless(half, mix={SMALL: 1}) == 0
    assert useless(half, mix={LARGE: 1}) == 4000
    assert useless(half, mix={SMALL: 3, LARGE: 1}) == 1000


def test_gpus_without_processors_are_useless():
    assert useless(mix={SMALL: 1}, cpus=500) == 8000


def test_only_so_many_kinds_of_pods_make_up_the_mix(monkeypatch: pytest.MonkeyPatch):
    counts = Counter({SMALL: 1, LARGE: 19})
    assert popular(counts) == [(LARGE, 19), (SMALL, 1)]
    monkeypatch.setattr(fragmentation, "MOST_KINDS", 1)
    assert popular(counts) == [(LARGE, 19)]


def test_a_pod_without_gpus_leaves_processors_to_free_gpus():
    """No whole GPU is free on either node, but a half one on n0."""
    held = [running(job("r0", "p", 0.5), ("n0", [0]), share=500), running(job("r1", "p", 1), ("n1", [0]))]
    wanted = job("q9", "p", 0, milli_cpus=4000)
    cluster = view(nodes(2, 1), [project("p", 16)], [*held, wanted])
    assert decide(cluster).starts[0].placements[0].node == "n0"
    by_fragments = decide(replace(cluster, placement="fragmentation"))
    assert by_fragments.starts[0].placements[0].node == "n1"


def test_a_pod_that_asks_for_gpu_memory_gets_a_device():
    """Its `milli_gpus` is 0, but it is no pod without GPUs."""
    asks = job("q1", "p", 0, gpu_memory_mib=16_384)
    cluster = view(nodes(1, 1), [project("p", 16)], [asks], placement="fragmentation")
    assert decide(cluster).starts[0].placements[0].devices == ((0, 500),)


def test_a_pod_goes_where_it_leaves_the_usual_pods_the_most_gpus():
    """Two GPUs are free on either node, but n1 has the processors of one usual pod: its other GPU becomes useless."""
    scarce = replace(node("n1", 2), milli_cpus=5000)
    rich = replace(node("n2", 2), milli_cpus=64_000)
    usual = [running(job(f"r{at}", "p", 1, milli_cpus=4000), ("n3", [at]), started_at=1) for at in range(8)]
    wanted = job("q9", "p", 1, milli_cpus=4000)
    cluster = view([scarce, rich, *nodes(4)[3:]], [project("p", 16)], [*usual, wanted])
    assert decide(cluster).starts[0].placements[0].node == "n1"
    by_fragments = decide(replace(cluster, placement="fragmentation"))
    assert by_fragments.starts[0].placements[0].node == "n2"
