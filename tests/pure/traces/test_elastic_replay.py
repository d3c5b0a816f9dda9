"""bench/elastic_replay drives the scheduler as the loop does: growth on idle GPUs, shrinking instead of stopping."""

from dataclasses import replace

from bench.elastic_replay import RESIZE_SECONDS, ElasticJob, ElasticReplay
from bench.elastic_trace import largest_worthwhile, rigid_ends
from controlplane.scheduling.view import DeviceView, NodeView

LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}
FOUR_GPUS = (NodeView("n0", "default", tuple(DeviceView(index, 32_768) for index in range(4)), 1_000, 1_000),)


def job(name: str, submitted: int, iterations: float) -> ElasticJob:
    return ElasticJob(name, submitted, iterations, 4, 10_000, LINEAR, 4)


def test_a_job_alone_has_all_gpus() -> None:
    assert ElasticReplay(FOUR_GPUS).run([job("a", 0, 400)]) == {"a": 100}


def test_a_newcomer_shrinks_the_first_which_grows_back_at_its_end() -> None:
    replay = ElasticReplay(FOUR_GPUS)
    ends = replay.run([job("a", 0, 4_000), job("b", 100, 100)])
    # b takes one GPU. Of the three that are left a uses two, and b would grow into the fourth at its next resize.
    assert ends["b"] < 100 + 100 + 2 * RESIZE_SECONDS
    assert ends["a"] < 1_000 + 100 + 3 * RESIZE_SECONDS
    assert replay.resizes["a"] == 2


def test_a_rigid_job_waits_for_its_size_and_smaller_ones_pass() -> None:
    small = ElasticJob("c", 20, 10, 1, 10_000, LINEAR, 4)
    first = ElasticJob("a", 0, 300, 2, 10_000, LINEAR, 4)
    assert rigid_ends([first, job("b", 10, 400), small], gpus=4) == {"a": 150, "c": 30, "b": 250}


def test_the_largest_size_is_the_last_whose_doubling_pays() -> None:
    assert largest_worthwhile({1: 1.0, 2: 1.9, 4: 2.5, 8: 2.6, 16: 4.0}) == 4


def test_the_job_grows_first_whose_declared_speed_gains_most() -> None:
    flat = {1: 1.0, 2: 1.1, 4: 1.2}
    declared = [
        ElasticJob("flat", 0, 1_000, 4, 10_000, flat, 4),
        ElasticJob("small", 0, 10, 4, 10_000, LINEAR, 4),
        ElasticJob("other", 0, 1_000, 4, 10_000, flat, 4),
        ElasticJob("linear", 0, 1_000, 4, 10_000, LINEAR, 4),
    ]
    unknown = [replace(one, is_declared=False) for one in declared]
    informed, plain = (ElasticReplay(FOUR_GPUS).run(jobs) for jobs in (declared, unknown))
    # one GPU becomes free, after 10 s
    assert informed["linear"] == 10 + RESIZE_SECONDS + 990 / 2
    assert plain["linear"] > informed["linear"]
    assert sum(plain.values()) > sum(informed.values())
