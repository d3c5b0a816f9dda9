"""Start the ranks of an MPI job on this machine, each with the devices of its planned pod.

Hydra, the launcher of MPICH and Intel MPI, starts a proxy on each host through a launch agent, normally ssh. Here
the hosts are the pods of the gang, and the agent (rank_agent.py) starts the proxy with the pod's rank, node and
devices. Open MPI's ranks run in the launcher's pod and see the devices of the whole gang.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from controlplane.engines.base import PodSpec
from controlplane.engines.local.records import Prepared, read_shared
from controlplane.engines.mpi_hostfile import HYDRA_FILE, OPEN_MPI_FILE, host_files, launch_variables

AGENT = Path(__file__).with_name("rank_agent.py")
# Names the file in which the launcher's first error is stored; it becomes part of the pod's message.
ERROR_FILE = "TRAINYARD_ERROR_FILE"
ERROR_MOST_BYTES = 300
# Ranks get their environment through the agent. If mpirun sent the launcher's environment, it would replace the
# pod's.
_HYDRA = {
    "HYDRA_LAUNCHER": "ssh",
    "HYDRA_ENV": "none",
    "I_MPI_HYDRA_BOOTSTRAP": "ssh",
    "I_MPI_HYDRA_ENV": "none",
}
_FOR_SSH = ("HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")


def prepare_launch(
    spec: PodSpec, folder: Path, environments: Mapping[str, Mapping[str, str]], port: int
) -> Mapping[str, str]:
    """Write host files, launch agent and `environments` (by pod name) into `folder`, and return the launcher's own
    variables. `port`: where rank 0 of a torch program listens."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / HYDRA_FILE).write_text(host_files(member.pod_name for member in spec.launches)[HYDRA_FILE])
    (folder / OPEN_MPI_FILE).write_text(host_files("localhost" for _ in spec.launches)[OPEN_MPI_FILE])
    ranks, agent = folder / "ranks.json", folder / "agent"
    ranks.write_text(json.dumps(environments))
    call = shlex.join([sys.executable, "-I", "-S", str(AGENT), str(ranks)])
    agent.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
    agent.chmod(0o700)
    general = launch_variables(str(folder), len(spec.launches))
    return {
        **{name: value for name, value in general.items() if name not in _FOR_SSH},
        **_HYDRA,
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(agent),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        ERROR_FILE: str(folder / "error"),
    }


def first_error(prepared: Prepared) -> str:
    """Return the error message of the rank that failed first; "" if none was written or the pod is no launcher."""
    # In a pod that is no launcher, the user sets the variable and could name any file of this machine.
    if not prepared.spec.launches or ERROR_FILE not in prepared.env:
        return ""
    text, _ = read_shared(Path(prepared.env[ERROR_FILE]), ERROR_MOST_BYTES)
    # NUL is removed because databases refuse it.
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())
