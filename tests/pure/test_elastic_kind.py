"""What an elastic job is when it was submitted, and what its pods are told."""

from typing import Any

import pytest

from jobs.kinds.elastic import sizes_text
from jobs.kinds.registry import KINDS
from jobs.kinds.spec import SpecInvalid, parse_spec

ELASTIC = KINDS["elastic"]


def spec(**fields: Any) -> dict[str, Any]:
    return parse_spec({"name": "el", "kind": "elastic", "gpus": 1, **fields})


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({}, (1, 1)),
        ({"workers": 3}, (1, 3)),
        ({"workers": 3, "min_workers": 2}, (2, 3)),
        ({"workers": 3, "min_workers": 1, "max_workers": 9}, (1, 9)),
        ({"workers": 3, "min_workers": 3, "max_workers": 3}, (3, 3)),
    ],
)
def test_its_bounds(given: dict[str, int], bounds: tuple[int, int]):
    read = spec(**given)
    assert (read["min_workers"], read["max_workers"]) == bounds
    assert ELASTIC.bounds(read) == bounds
    assert [pod.rank for pod in ELASTIC.pods(read)] == list(range(read["workers"]))


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"workers": 2, "min_workers": 3}, [("/min_workers", "above_workers")]),
        ({"workers": 3, "max_workers": 2}, [("/max_workers", "below_workers")]),
        (
            {"workers": 3, "min_workers": 4, "max_workers": 2},
            [("/min_workers", "above_workers"), ("/max_workers", "below_workers")],
        ),
        ({"min_workers": 0}, [("/min_workers", "out_of_range")]),
        ({"max_workers": 10_001}, [("/max_workers", "out_of_range")]),
        ({"min_workers": "2"}, [("/min_workers", "not_a_whole_number")]),
        ({"gpus": 0.5, "max_workers": 2}, [("/max_workers", "share_needs_one_worker")]),
        (
            {"gpus": None, "gpu_memory_mib": 512, "max_workers": 2},
            [("/max_workers", "share_needs_one_worker")],
        ),
        ({"workers": 3, "worker_sizes": [2, 4]}, [("/workers", "size_not_allowed")]),
        ({"workers": 4, "min_workers": 1, "worker_sizes": [2, 4]}, [("/min_workers", "size_not_allowed")]),
        ({"workers": 2, "max_workers": 3, "worker_sizes": [2, 4]}, [("/max_workers", "size_not_allowed")]),
        (
            {"workers": 4, "min_workers": 1, "max_workers": 9, "worker_step": 2},
            [("/workers", "size_not_allowed")],
        ),
        ({"workers": 2, "worker_sizes": [2], "worker_step": 1}, [("/worker_step", "one_of")]),
        ({"worker_sizes": [0]}, [("/worker_sizes/0", "out_of_range")]),
        ({"worker_sizes": "1,2"}, [("/worker_sizes", "not_a_list")]),
        ({"worker_speeds": {"10001": 1}}, [("/worker_speeds/10001", "bad_name")]),
        ({"worker_speeds": {"0": 1}}, [("/worker_speeds/0", "bad_name")]),
        ({"worker_speeds": {"1": 1e-200}}, [("/worker_speeds/1", "out_of_range")]),
        ({"worker_speeds": {"1": 9e-7}}, [("/worker_speeds/1", "out_of_range")]),
        ({"worker_speeds": {"1": 1.1e9}}, [("/worker_speeds/1", "out_of_range")]),
        ({"worker_speeds": {"1": float("inf")}}, [("/worker_speeds/1", "not_a_number")]),
    ],
)
def test_what_is_refused(given: dict[str, Any], refused: list[tuple[str, str]]):
    with pytest.raises(SpecInvalid) as refusal:
        spec(**given)
    assert [(error.pointer, error.code) for error in refusal.value.errors] == refused
    assert all(error.detail for error in refusal.value.errors)


def test_programs_are_told_the_size_that_they_got_and_its_bounds():
    told = ELASTIC.environment(spec(workers=5, min_workers=2, max_workers=8, gpus=2), 3)
    assert told == {
        "TRAINYARD_MIN_WORKERS": "2",
        "TRAINYARD_MAX_WORKERS": "8",
        "workers": "3",
        "minWorkers": "2",
        "maxWorkers": "8",
        "gpus": "2",
    }


def test_the_others_have_one_size_and_say_nothing_more():
    for name in ("train", "interactive", "mpi"):
        read = parse_spec({"name": "job", "kind": name})
        assert KINDS[name].bounds(read) is None
        assert KINDS[name].environment(read, 1) == {}
        assert not KINDS[name].has_stable_names
        assert (read["min_workers"], read["max_workers"]) == (None, None)


@pytest.mark.parametrize(
    ("given", "bounds", "sizes"),
    [
        ({"workers": 2}, (1, 2), ()),
        ({"workers": 2, "worker_sizes": [8, 1, 2, 4, 2]}, (1, 8), (1, 2, 4, 8)),
        ({"workers": 4, "min_workers": 2, "max_workers": 9, "worker_step": 2}, (2, 9), (2, 4, 6, 8)),
    ],
)
def test_its_allowed_sizes(given: dict[str, Any], bounds: tuple[int, int], sizes: tuple[int, ...]):
    read = spec(**given)
    assert (ELASTIC.bounds(read), ELASTIC.sizes(read)) == (bounds, sizes)
    without = {name: value for name, value in read.items() if name not in ("worker_sizes", "worker_step")}
    assert ELASTIC.sizes(without) == ()  # a spec of an older version


def test_its_speeds():
    assert ELASTIC.speeds(spec(worker_speeds={"10000": 1e9, "2": 8.5, "1": 1e-6})) == (
        (1, 1e-6),
        (2, 8.5),
        (10_000, 1e9),
    )


def test_speeds_of_an_older_version_that_no_division_could_use_are_left_out():
    stored = {"1": 1e-200, "2": 8.5, "3": 1e10, "99999": 9.0}
    assert ELASTIC.speeds({"worker_speeds": stored}) == ((2, 8.5),)
    assert ELASTIC.speeds({}) == ()


def test_only_an_elastic_job_has_sizes():
    with pytest.raises(SpecInvalid) as refusal:
        parse_spec({"name": "t", "kind": "train", "worker_sizes": [1, 2]})
    assert [(error.pointer, error.code) for error in refusal.value.errors] == [
        ("/worker_sizes", "only_elastic")
    ]


def test_what_is_said_of_a_size_that_is_not_allowed():
    assert sizes_text((1, 2, 4, 8), 5) == "Allowed are 1, 2, 4, 8 workers; nearest to 5: 4 and 8."
    assert sizes_text((2, 4), 1) == "Allowed are 2, 4 workers; nearest to 1: 2."
    assert sizes_text(range(1, 100), 200).endswith("12, ... 99 workers; nearest to 200: 99.")
