"""Run a command in a pod without a terminal, with the pod's environment, directory and token, so that it ends with
the pod."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence

from controlplane.engines.base import RUN_SCRIPT, STDERR, STDOUT
from controlplane.engines.local import processes
from controlplane.engines.local.records import Prepared
from controlplane.engines.local.shell import exit_code_within, kill_session, start_program

# The command ends shortly after its output: then its own exit code is returned, and not that of a kill.
_ENDING_SECONDS = 2.0


class LocalProcess:
    """A command in a local pod; implements engines.base.Process. `pid`: of the pod's process whose environment it
    gets. `fileno` returns an epoll descriptor that is readable when either output is. Raise EngineRefused if the
    system cannot start it."""

    def __init__(self, prepared: Prepared, pid: int, command: Sequence[str]) -> None:
        words = ["sh", "-c", RUN_SCRIPT, "sh", *command]
        pipe = subprocess.PIPE
        self._process = start_program(words, prepared, pid, stdin=pipe, stdout=pipe, stderr=pipe)
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        if stdin is None or stdout is None or stderr is None:
            raise AssertionError("Popen gives every pipe that it was asked for")
        self._stdin, self._streams = stdin, (stdin, stdout, stderr)
        self._outputs = {stdout.fileno(): STDOUT, stderr.fileno(): STDERR}
        os.set_blocking(self._stdin.fileno(), False)
        self._epoll = select.epoll()
        for output in self._outputs:
            self._epoll.register(output, select.EPOLLIN)
        self._ticks = processes.start_ticks_of(self._process.pid)
        self._is_closed = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    def input_fileno(self) -> int:
        return self._stdin.fileno()

    def read(self, limit: int = 65536) -> tuple[int, bytes]:
        for output, _ in self._epoll.poll(0, 1):
            data = os.read(output, limit)
            if data:
                return self._outputs[output], data
            # At its end an output stays readable, so every poll would report it again.
            self._epoll.unregister(output)
            del self._outputs[output]
        if not self._outputs:
            raise EOFError
        return STDOUT, b""

    def write(self, data: bytes) -> int:
        try:
            return os.write(self._stdin.fileno(), data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            # A program may close its input and continue to write output, so the rest of the input is discarded.
            return len(data)

    def close_input(self) -> None:
        self._stdin.close()

    def close(self) -> int | None:
        """Kill the remaining processes of the command's session. Return its exit code if it ended by itself, else
        None; None also for a repeat. Waits up to 2 s for the exit if its output has ended."""
        if self._is_closed:
            return None
        self._is_closed = True
        exit_code = self._own_exit_code()
        for stream in self._streams:
            stream.close()
        self._epoll.close()
        kill_session(self._process, self._ticks)
        return exit_code

    def _own_exit_code(self) -> int | None:
        return exit_code_within(self._process, 0 if self._outputs else _ENDING_SECONDS)
