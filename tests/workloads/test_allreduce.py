"""Joining ranks, and the sweep over message sizes."""

import argparse
import json

import pytest

from tests.workloads.conftest import RanksStory
from workloads.allreduce.sweep import Measurement, parse_size, sizes
from workloads.common.rank_info import RankInfo, rank_info_from


@pytest.mark.parametrize(
    ("env", "rank_info"),
    [
        ({}, RankInfo(0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "PMI_RANK": "9"}, RankInfo(3, 4, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, RankInfo(1, 2, 0)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1"}, RankInfo(1, 3, 1)),
        ({"RANK": "3"}, RankInfo(0, 1, 0)),
    ],
)
def test_the_rank_is_the_one_that_the_launcher_assigned(env, rank_info):
    assert rank_info_from(env) == rank_info
    assert rank_info.is_first == (rank_info.rank == 0)


def test_a_rank_beyond_the_world_is_an_error():
    with pytest.raises(ValueError, match="RANK=4 is not below WORLD_SIZE=4"):
        rank_info_from({"RANK": "4", "WORLD_SIZE": "4"})


def test_bandwidths_are_those_of_nccls_own_test():
    """1 GiB over 16 ranks in 47,904 us: 22.41 and 42.03 GB/s, a row of a published run."""
    row = Measurement(1 << 30, 0.047904, 16, 0)
    assert round(row.algorithm_gb_per_s, 2) == 22.41
    assert round(row.bus_gb_per_s, 2) == 42.03


def test_sizes_double_and_are_read_with_their_unit():
    assert list(sizes(8, 64)) == [8, 16, 32, 64]
    assert [parse_size(text) for text in ("8", "8B", "64KiB", "1GiB")] == [8, 8, 65_536, 1 << 30]
    for nonsense in ("", "3", "x", "8 KiB", "-8", "1KB"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_size(nonsense)


@pytest.mark.slow
def test_ranks_sum_rightly_and_rank_0_reports_sizes_and_pairs(ranks_story: RanksStory):
    (*lines, code), *others = ranks_story.told["swept"]
    assert [code, *others] == ["exit code 0", ["exit code 0"], ["exit code 0"]]
    *rows, summary, first, second, third = [json.loads(line) for line in lines]
    assert [(row["size_bytes"], row["wrong"]) for row in rows] == [(8, 0), (16, 0), (32, 0), (64, 0)]
    assert (summary["ranks"], summary["backend"]) == (3, "gloo")
    pairs = [["rank 0", "rank 1"], ["rank 0", "rank 2"], ["rank 1", "rank 2"]]
    assert [found["allreduce_pair"] for found in (first, second, third)] == pairs
    assert first["bus_gb_per_s"] > 0
