"""Measure all-reduce over all ranks of a job, by message size: `python -m workloads.allreduce.sweep [--to
1GiB]`.

Rank 0 prints a table, or with --json one JSON line per size: bytes, seconds, algorithm bandwidth (bytes /
seconds), bus bandwidth (times 2(n-1)/n, the load of each link) and the number of wrong results. Bandwidths
are in GB/s (10^9 bytes). The printed mean is over all rows, as in NCCL's own test, so it depends on the range
of sizes.

With three or more ranks, one JSON line per pair of nodes follows, with the bus bandwidth between one rank of
each, which shows slow links. The job page displays them as a heat map.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, distributed

from workloads.common.devices import take_device
from workloads.common.distributed import joined_ranks
from workloads.common.rank_info import RankInfo

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
WARM_UP, REPEATS = 5, 20
FLOAT_BYTES = 4
PAIR_BYTES = 4 << 20
# This many nodes have 120 pairs; each is measured while the others wait.
MOST_NODES = 16


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurement of one message size. `seconds`: mean over repeats and ranks; `wrong`: the number of wrong
    results."""

    size_bytes: int
    seconds: float
    world_size: int
    wrong: int

    @property
    def algorithm_gb_per_s(self) -> float:
        return self.size_bytes / self.seconds / 1e9

    @property
    def bus_gb_per_s(self) -> float:
        return self.algorithm_gb_per_s * 2 * (self.world_size - 1) / self.world_size


def sizes(low: int, high: int) -> Iterator[int]:
    """Yield sizes in bytes from `low` to `high`, each twice the previous one."""
    while low <= high:
        yield low
        low *= 2


def measure(size_bytes: int, device: torch.device, rank_info: RankInfo) -> Measurement:
    """Measure the all-reduce of a message of `size_bytes`, count wrong results, and return both. A collective
    call: all ranks must make it; each gets the result for all ranks."""
    message = torch.empty(size_bytes // FLOAT_BYTES, device=device)
    wrong = _wrong(message, rank_info)
    for _ in range(WARM_UP):
        distributed.all_reduce(message)
    _synchronize(device)
    distributed.barrier()
    start = time.perf_counter()
    for _ in range(REPEATS):
        distributed.all_reduce(message)
    _synchronize(device)
    seconds = torch.tensor([(time.perf_counter() - start) / REPEATS, float(wrong)], device=device)
    distributed.all_reduce(seconds)
    return Measurement(
        size_bytes, float(seconds[0]) / rank_info.world_size, rank_info.world_size, int(seconds[1])
    )


def measure_pairs(device: torch.device, rank_info: RankInfo) -> Iterator[tuple[str, str, Measurement]]:
    """Yield (node, node, measurement) for each pair of the first MOST_NODES nodes, measured between one rank of each;
    between pairs of ranks if there are fewer than three nodes. All ranks must iterate together; each gets all results.
    """
    names = [""] * rank_info.world_size
    distributed.all_gather_object(names, os.environ.get("TRAINYARD_NODE") or socket.gethostname())
    firsts = {name: rank for rank, name in reversed(list(enumerate(names)))}
    if len(firsts) < 3:
        firsts = {f"rank {rank}": rank for rank in range(rank_info.world_size)}
    ends = sorted(firsts.items(), key=lambda pair: pair[1])[:MOST_NODES]
    for (first, one), (second, other) in itertools.combinations(ends, 2):
        group = distributed.new_group([one, other])
        seconds = torch.zeros(1, device=device)
        if rank_info.rank in (one, other):
            seconds += _pair_seconds(device, group) / 2
        distributed.all_reduce(seconds)
        yield first, second, Measurement(PAIR_BYTES, float(seconds), 2, 0)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `8`, `64KiB` or `1GiB`. Raises ArgumentTypeError for other text and for less
    than FLOAT_BYTES, which argparse shows as the option's error."""
    number = text.rstrip("BKMGi")
    unit = text[len(number) :] or "B"
    if not number.isdecimal() or unit not in UNITS or int(number) * UNITS[unit] < FLOAT_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8, 64KiB or 1GiB")
    return int(number) * UNITS[unit]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sweep", description="All-reduce by message size.")
    parser.add_argument("--from", dest="low", type=parse_size, default=8, help="smallest message (8)")
    parser.add_argument(
        "--to", dest="high", type=parse_size, default=UNITS["MiB"] * 64, help="largest (64MiB)"
    )
    parser.add_argument("--json", action="store_true", help="a JSON line per size instead of the table")
    parser.add_argument("--no-pairs", dest="pairs", action="store_false", help="leave out the pairs of nodes")
    options = parser.parse_args(arguments)
    device = take_device().device
    with joined_ranks(device) as rank_info:
        rows = []
        for size in sizes(options.low, options.high):
            rows.append(measure(size, device, rank_info))
            if rank_info.is_first:
                print(_line(rows[-1], options.json), flush=True)
        if rank_info.is_first:
            print(_summary(rows, device, options.json), flush=True)
        if rank_info.world_size > 2 and options.pairs:
            for first, second, pair in measure_pairs(device, rank_info):
                if rank_info.is_first:
                    found = {"allreduce_pair": [first, second], "bus_gb_per_s": round(pair.bus_gb_per_s, 4)}
                    print(json.dumps(found), flush=True)
    return 1 if any(row.wrong for row in rows) else 0


def _pair_seconds(device: torch.device, group: distributed.ProcessGroup | None) -> float:
    message, repeats = torch.ones(PAIR_BYTES // FLOAT_BYTES, device=device), REPEATS // 4
    distributed.all_reduce(message, group=group)
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        distributed.all_reduce(message, group=group)
    _synchronize(device)
    return (time.perf_counter() - start) / repeats


def _wrong(message: Tensor, rank_info: RankInfo) -> int:
    """All-reduce a message in which each rank writes its rank + 1. Return how many elements of the sum are wrong
    on this rank."""
    message.fill_(rank_info.rank + 1)
    distributed.all_reduce(message)
    expected = rank_info.world_size * (rank_info.world_size + 1) // 2
    return int((message != expected).sum())


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _line(row: Measurement, is_json: bool) -> str:
    rates = {"algorithm_gb_per_s": row.algorithm_gb_per_s, "bus_gb_per_s": row.bus_gb_per_s}
    if is_json:
        return json.dumps({**asdict(row), **{name: round(rate, 4) for name, rate in rates.items()}})
    micros = row.seconds * 1e6
    return (
        f"{row.size_bytes:>14,} B {micros:>12,.1f} us {row.algorithm_gb_per_s:>9.3f} {row.bus_gb_per_s:>9.3f} GB/s"
        f"  {row.wrong} wrong"
    )


def _summary(rows: Sequence[Measurement], device: torch.device, is_json: bool) -> str:
    rates = [row.bus_gb_per_s for row in rows]
    summary = {
        "ranks": rows[0].world_size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "backend": distributed.get_backend(),
        "mean_bus_gb_per_s": round(statistics.fmean(rates), 4),
        "peak_bus_gb_per_s": round(max(rates), 4),
    }
    return json.dumps(summary) if is_json else "  ".join(f"{name} {value}" for name, value in summary.items())


if __name__ == "__main__":
    raise SystemExit(main())
