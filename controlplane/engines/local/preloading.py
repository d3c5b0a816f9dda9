"""Start pods by a fork server (fork_server.py) that has imported the modules of their programs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.engines.local.processes import TOKEN_VARIABLE
from controlplane.engines.local.shim_start import is_readable

SERVER = Path(__file__).with_name("fork_server.py")
PYTHONS = ("python", "python3")
# As long as a pod's token, which replaces it.
NO_TOKEN = "0" * 32
# Variables that the interpreter and libraries read when they are loaded: a fork has those of its server.
_READ_AT_START = re.compile(
    r"(PATH$|LANG|LC_|LD_|PYTHON|TORCH|PYTORCH|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|NUMEXPR_|MALLOC_|GLIBC_|ATEN_|DNNL_|ONEDNN_)"
)
# How long starts wait for a new server's imports, and each for its answer.
WAIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a fork server is started with: the modules to import, and the variables that Python and these modules read
    when they are loaded. It can start only pods with the same recipe."""

    modules: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]


def recipe_for(
    modules: Sequence[str], argv: Sequence[str], env: Mapping[str, str], chosen: Collection[str]
) -> Recipe | None:
    """Return the recipe of the fork server that can start a pod; None if the pod must be started by exec.

    `modules`: those that the image preloads; `argv` and `env`: the pod's. `chosen`: names of the variables that the
    job's user set. One that is read at the start (PYTHONPATH, LD_PRELOAD) can run the user's code, which must not
    happen in a server that other pods share.
    """
    is_ours = env.get("PATH", "").partition(":")[0] == str(Path(sys.executable).parent)
    is_users = any(_READ_AT_START.match(name) for name in chosen)
    # Entries of a relative path mean other directories in the server, so such a pod cannot be forked from it.
    is_absolute = all(os.path.isabs(entry) for entry in env.get("PYTHONPATH", "/").split(":"))
    if not modules or not is_ours or is_users or not is_absolute or not is_program(argv):
        return None
    return Recipe(
        tuple(modules), tuple(sorted(item for item in env.items() if _READ_AT_START.match(item[0])))
    )


def is_program(argv: Sequence[str]) -> bool:
    """Return whether the command line is `python -m MODULE ...` or `python FILE.py ...`."""
    if len(argv) < 2 or argv[0] not in PYTHONS:
        return False
    return len(argv) > 2 if argv[1] == "-m" else argv[1].endswith(".py") and not argv[1].startswith("-")


class ForkServers:
    """At most one fork server, for the first recipe requested, because a server takes some hundred MB of memory. One
    for another recipe starts only after this one has ended. Thread-safe. `errors`: the log of the servers' errors."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        # Held while a server is started or ended, because pods are started on many threads.
        self._lock = threading.Lock()
        self._recipe: Recipe | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        # When the server was started, monotonic: starts wait for its imports only until WAIT_SECONDS later.
        self._began_at = 0.0
        # Recipes whose server ended before it was ready, because an import failed.
        self._refused: set[Recipe] = set()
        self._is_closed = False

    def start(self, recipe: Recipe, pod_dir: Path) -> bool:
        """Have a fork server start the pod, and wait until its command runs. Return False if the caller must start a
        shim by exec: no ready server has this recipe, it does not answer within WAIT_SECONDS, or the pod has a shim
        already. Starting a second shim is harmless, because a pod starts at most once."""
        control = self._server_of(recipe)
        # A server that is not ready gets no message, because it might never read it.
        if control is None or not _is_ready(control, self._began_at + WAIT_SECONDS - time.monotonic()):
            return False
        started, write = os.pipe()
        try:
            socket.send_fds(control, [os.fsencode(pod_dir)], [write])
        except OSError:
            # The server has ended, and the next call starts another one; or it does not read.
            os.close(started)
            return False
        finally:
            os.close(write)
        return _is_answered(started)

    def close(self) -> None:
        """End the server, and start none afterwards. Pods that it started keep running."""
        with self._lock:
            self._is_closed = True
            self._end()

    def _server_of(self, recipe: Recipe) -> socket.socket | None:
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                if self._recipe is not None and self._control is not None and not _is_ready(self._control, 0):
                    self._refused.add(self._recipe)
                self._end()
            if self._process is None and recipe not in self._refused and not self._is_closed:
                self._begin(recipe)
            return self._control if recipe == self._recipe else None

    def _begin(self, recipe: Recipe) -> None:
        # SOCK_SEQPACKET keeps the boundaries of messages, each of which brings one descriptor.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**dict(recipe.variables), TOKEN_VARIABLE: NO_TOKEN}
        command = [sys.executable, str(SERVER), str(theirs.fileno()), *recipe.modules]
        with theirs, open(self._errors, "ab") as errors:
            self._process = subprocess.Popen(
                command, env=env, cwd="/", pass_fds=[theirs.fileno()], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        # A server that was stopped by a signal must not block the starts of all pods.
        ours.settimeout(WAIT_SECONDS)
        self._control, self._recipe, self._began_at = ours, recipe, time.monotonic()

    def _end(self) -> None:
        if self._process is not None and self._control is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
        self._process = self._control = self._recipe = None


def _is_ready(control: socket.socket, seconds: float) -> bool:
    """Wait until the server has imported its modules; return False after `seconds`, or if it has ended. The byte
    stays in the socket, so that later calls find it too."""
    try:
        return is_readable(control.fileno(), max(0.0, seconds)) and control.recv(1, socket.MSG_PEEK) != b""
    except (OSError, ValueError):
        # Another thread has closed this end, because the server has ended.
        return False


def _is_answered(started: int) -> bool:
    try:
        # The end of the pipe without a byte: the server has ended, or the pod has another shim.
        return is_readable(started, WAIT_SECONDS) and os.read(started, 1) != b""
    finally:
        os.close(started)
