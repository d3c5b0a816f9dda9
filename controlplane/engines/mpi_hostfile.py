"""Host files for an MPI launcher, in the two formats that implementations read.

Open MPI reads `host slots=n`, the Hydra launcher of MPICH and Intel MPI reads `host:n`. The variables make these
files the default, so that a job's command is just `mpirun program`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

OPEN_MPI_FILE, HYDRA_FILE = "hostfile", "machinefile"
# A new host's key is unknown, and a host that is starting may refuse connections for a moment.
SSH_OPTIONS = (
    "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectionAttempts=20 -o LogLevel=ERROR"
)


def host_files(hosts: Iterable[str]) -> Mapping[str, str]:
    """Return host files in both formats, by file name. `hosts`: one entry per rank; a host that is repeated gets
    several ranks."""
    slots = Counter(hosts)
    return {
        OPEN_MPI_FILE: "".join(f"{host} slots={count}\n" for host, count in slots.items()),
        HYDRA_FILE: "".join(f"{host}:{count}\n" for host, count in slots.items()),
    }


def launch_variables(folder: str, ranks: int) -> Mapping[str, str]:
    """Return the environment variables that make a launcher use the files of `host_files` in `folder`. `ranks`: their
    number."""
    return {
        "TRAINYARD_RANKS": str(ranks),
        "OMPI_MCA_orte_default_hostfile": f"{folder}/{OPEN_MPI_FILE}",
        "PRTE_MCA_prte_default_hostfile": f"{folder}/{OPEN_MPI_FILE}",
        "OMPI_MCA_plm_rsh_args": SSH_OPTIONS,
        "PRTE_MCA_plm_ssh_args": SSH_OPTIONS,
        # Many images run as root, which Open MPI refuses unless both variables are set.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "HYDRA_HOST_FILE": f"{folder}/{HYDRA_FILE}",
        "I_MPI_HYDRA_HOST_FILE": f"{folder}/{HYDRA_FILE}",
        "HYDRA_LAUNCHER_EXTRA_ARGS": SSH_OPTIONS,
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": SSH_OPTIONS,
    }
