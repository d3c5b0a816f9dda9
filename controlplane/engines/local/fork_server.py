"""Fork shims of pods from a process that has imported a program's modules: `python fork_server.py SOCKET_FD
MODULE...`.

When the modules are imported the server sends READY. Each message names a pod's directory and carries the
write end of a pipe (see `shim.supervise`). The command of such a shim is the Python program itself, without
an exec, so its imports take no time. The server ends when the engine that started it closes the socket, or
after IDLE_SECONDS without a message.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import ModuleType, TracebackType

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)).rsplit(os.sep, 3)[0])

from controlplane.engines.local import processes, shim
from controlplane.engines.local.preloading import NO_TOKEN, is_program

# Without the entries that this file and `shim` have put first, and without this file's directory: pods have
# none of these on their path.
_PATH = sys.path[2:] if sys.flags.safe_path else sys.path[3:]
# An idle server ends, because it holds some hundred MB of memory.
IDLE_SECONDS = 600.0
# Longer imports count as failed, so that an import that hangs does not keep its memory.
IMPORT_SECONDS = 300
READY = b"ready"
LONGEST_MESSAGE = 4096
# Positions in /proc/self/stat after the command's name: the addresses of arguments and environment.
_ARGUMENTS, _ENVIRONMENT = 45, 47


class Command(BaseException):
    """Raised in a forked process that becomes a pod's command, to leave the server's stack frames."""

    def __init__(self, launch: shim.Launch) -> None:
        super().__init__()
        self.launch = launch


def serve(control: socket.socket) -> None:
    """Fork a shim for each message, until the engine closes its end or sends nothing for IDLE_SECONDS. Raise Command
    in a forked process that becomes a pod's command."""
    # The kernel then removes ended shims from the process table without a wait by this process.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while poll.poll(IDLE_SECONDS * 1000):
        message, pipes, _, _ = socket.recv_fds(control, LONGEST_MESSAGE, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            _show_words([sys.executable, shim.__file__, os.fsdecode(message)])
            shim.supervise(os.fsdecode(message), pipes[0], become)
            os._exit(0)
        os.close(pipes[0])


def become(launch: shim.Launch) -> None:
    """Become the pod's command, and never return: raise Command for a Python program, which this process runs itself;
    execute any other, which raises OSError if that fails."""
    if not is_program(launch.argv) or not _is_there(launch.argv[1]):
        shim.execute(launch)
    raise Command(launch)


def run(launch: shim.Launch) -> None:
    """Run the pod's Python program in this process, as `python` would. Ends by SystemExit or by the program's own
    exception."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _show_words(launch.argv)
    _show_token(launch.env[processes.TOKEN_VARIABLE])
    os.environ.clear()
    os.environ.update(launch.env)
    # An interpreter reads the time zone at its start, but this one started with that of the server.
    time.tzset()
    _draw_numbers_anew()
    for name in [name for name in sys.modules if name.partition(".")[0] == "controlplane"]:
        del sys.modules[name]
    # The cache remembers as missing the directories that were created since the server started.
    sys.path_importer_cache.clear()
    name, *arguments = launch.argv[1:] if launch.argv[1] != "-m" else launch.argv[2:]
    sys.orig_argv, sys.argv = list(launch.argv), [name, *arguments]
    # The interpreter still uses the dictionary of this file's module after the program, so the module must not be
    # freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules["__main__"]))
    # The program's module is never freed either, because threads and functions called at exit need what it
    # has defined.
    program = sys.modules["__main__"] = ModuleType("__main__")
    vars(program)["__builtins__"] = builtins
    if launch.argv[1] == "-m":
        _set_path(os.getcwd())
        # What Python itself calls for `-m`, so that the program runs as in an interpreter of its own.
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # typeshed lacks it
    else:
        _set_path(os.path.dirname(os.path.realpath(name)))
        _run_file(os.path.abspath(name), program)


def _set_path(own: str) -> None:
    sys.path[:] = [*([] if sys.flags.safe_path else [own]), *_PATH]


def _run_file(path: str, program: ModuleType) -> None:
    vars(program).update(__file__=path, __cached__=None)
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(program))


def _is_there(name: str) -> bool:
    return name == "-m" or os.path.isfile(name)


def _draw_numbers_anew() -> None:
    """Replace random state that all forked processes would share: NumPy's global generator, and multiprocessing's
    authentication key. `random` and torch need no new seed."""
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (multiprocessing := sys.modules.get("multiprocessing.process")) is not None:
        multiprocessing.current_process().authkey = os.urandom(32)


def _show_words(words: Sequence[str]) -> None:
    """Make the process table show these words as the command line, cut to the length of the original one."""
    start, size = _place(_ARGUMENTS)
    shown = os.fsencode("\0".join(words))[: size - 1]
    ctypes.memmove(start, shown.ljust(size, b"\0"), size)


def _show_token(token: str) -> None:
    """Put the pod's token into the environment that /proc shows, where `processes.with_token` searches."""
    start, size = _place(_ENVIRONMENT)
    none = f"{processes.TOKEN_VARIABLE}={NO_TOKEN}".encode()
    shown = f"{processes.TOKEN_VARIABLE}={token}".encode()
    at = ctypes.string_at(start, size).index(none)
    ctypes.memmove(start + at, shown, len(none))


def _place(position: int) -> tuple[int, int]:
    """Return address and size of the memory from which /proc shows the arguments or the environment. `position`:
    _ARGUMENTS or _ENVIRONMENT."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = map(int, fields[position : position + 2])
    return start, end - start


def _show_error(kind: type[BaseException], error: BaseException, found: TracebackType | None) -> None:
    """Print the program's traceback without the frames of this file and of runpy."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while found is not None and found.tb_frame.f_code.co_filename in ours:
        found = found.tb_next
    sys.__excepthook__(kind, error.with_traceback(found), found)


def main() -> None:
    """Import the modules, then serve the engine. In a process forked to become a pod's command, run that command."""
    control, modules = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    # Kills this process, which then counts as one whose import failed.
    signal.alarm(IMPORT_SECONDS)
    for name in modules:
        importlib.import_module(name)
    signal.alarm(0)
    # Collecting garbage would write to memory that the forks share.
    gc.freeze()
    launch = None
    try:
        control.send(READY)
        serve(control)
    except Command as command:
        launch = command.launch
    if launch is None:
        return
    sys.excepthook = _show_error
    run(launch)


if __name__ == "__main__":
    main()
