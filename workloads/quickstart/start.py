"""Train in this process, or start workers and wait for them. Workers are marked, so that they never start
others."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from workloads.common.launch import LAUNCHED, Launch
from workloads.common.rank_info import rank_info_from
from workloads.quickstart.settings import Settings, read_settings


def main(arguments: Sequence[str] | None = None) -> int:
    settings = read_settings(arguments)
    if settings.workers > 1 and LAUNCHED not in os.environ:
        return _launch(settings, sys.argv[1:] if arguments is None else arguments)
    # torch takes seconds and 0.4 GB, so only processes that train import it.
    from workloads.quickstart.training import train

    return train(settings)


def _launch(settings: Settings, arguments: Sequence[str]) -> int:
    """Run this program once per worker on this machine and wait. Return the exit code; 2, after a message, in a
    process that is one of several ranks."""
    ranks = rank_info_from(os.environ).world_size
    if ranks > 1:
        print(f"--workers is for a process alone; this one is of {ranks} ranks.", file=sys.stderr)
        return 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = int(os.environ.get("OMP_NUM_THREADS", "1")) // settings.workers
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(max(1, threads)),
    }
    return Launch(settings.workers, "workloads.quickstart.train", arguments, is_local=True).run()
