"""Join the ranks of a job, whether torchrun, an MPI launcher or Trainyard started them, or there is only
one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from workloads.common.backends import form_group
from workloads.common.rank_info import RankInfo, rank_info_from

LOOPBACK, DEFAULT_PORT = "127.0.0.1", "29400"
JOIN_SECONDS = "300"


class RanksMissing(RuntimeError):
    """Some ranks did not join in time. The message names them."""


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[RankInfo]:
    """Context manager that joins the process group (see backends) and leaves it at the end. A single rank joins a
    group of one, so that programs need no special case. Rank 0 listens at MASTER_ADDR and MASTER_PORT. Raises
    RanksMissing, with the missing ranks, if they do not join within JOIN_SECONDS (300)."""
    rank_info = rank_info_from(os.environ)
    # A single rank needs no port, which another program might use.
    store = HashStore() if rank_info.world_size == 1 else _store_of_all(rank_info)
    form_group(store, rank_info.rank, rank_info.world_size, device)
    try:
        yield rank_info
    finally:
        distributed.destroy_process_group()


def means_over_ranks(sums: Sequence[float], number: int, device: torch.device) -> tuple[list[float], int]:
    """Return (means, number of items) over all ranks, which must call it together. `sums`: this rank's sums over
    its `number` items. Raises ValueError if no rank has any item."""
    totals = torch.tensor([*sums, number], dtype=torch.float64, device=device)
    distributed.all_reduce(totals)
    *totals_of, items = totals.tolist()
    if not items:
        raise ValueError("There is nothing to take the mean of.")
    return [total / items for total in totals_of], round(items)


def _store_of_all(rank_info: RankInfo) -> Store:
    """Return the store of rank 0 once all ranks have connected to it. Raises RanksMissing if rank 0 or another rank
    does not do so within JOIN_SECONDS."""
    host, port = os.environ.get("MASTER_ADDR", LOOPBACK), int(os.environ.get("MASTER_PORT", DEFAULT_PORT))
    if host == LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    seconds = float(os.environ.get("JOIN_SECONDS", JOIN_SECONDS))
    limit = timedelta(seconds=seconds)
    try:
        store = TCPStore(
            host,
            port,
            is_master=rank_info.is_first and not _is_hosted(),
            wait_for_workers=False,
            timeout=limit,
        )
    except distributed.DistError as error:
        raise RanksMissing(f"Rank {rank_info.rank} did not reach rank 0 at {host}:{port}: {error}") from error
    joined = PrefixStore(f"joined-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    joined.set(str(rank_info.rank), "1")
    try:
        joined.wait([str(rank) for rank in range(rank_info.world_size)], limit)
    except distributed.DistError as error:
        missing = [rank for rank in range(rank_info.world_size) if not joined.check([str(rank)])]
        words = ", ".join(map(str, missing))
        raise RanksMissing(
            f"Of {rank_info.world_size} ranks these have not joined within {seconds:g} s: {words}."
        ) from error
    return joined


def _is_hosted() -> bool:
    """Return whether torchrun's agent listens at MASTER_PORT, so that rank 0 must not."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
