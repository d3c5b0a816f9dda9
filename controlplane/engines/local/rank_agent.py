"""Launch agent of mpirun on the local engine, called like ssh: `agent RANKS [OPTIONS] HOST COMMAND...`.

HOST is a pod, and RANKS a file with the pods' variables. Runs isolated and without site-packages, so it imports
only the standard library.
"""

import json
import os
import re
import sys
from collections.abc import Sequence

# mpirun listens on this machine, whose own host name may not resolve.
_CONTROL_PORT = re.compile(r"(--control-port )\S+:(\d+)")


def main(arguments: Sequence[str]) -> None:
    """Replace this process by the command that mpirun wants on a host, with the variables of the pod of that name.
    `arguments`: those after the program's name, see above. Raise KeyError for another host."""
    ranks, *rest = arguments
    while rest[0].startswith("-"):
        rest.pop(0)
    pod, *words = rest
    with open(ranks) as file:
        own = json.load(file)[pod]
    command = _CONTROL_PORT.sub(r"\g<1>127.0.0.1:\2", " ".join(words))
    # By a shell, as sshd does, because mpirun quotes its command for one.
    os.execve("/bin/sh", ["sh", "-c", command], {**os.environ, **own})


if __name__ == "__main__":
    main(sys.argv[1:])
