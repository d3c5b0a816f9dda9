"""A command on this machine instead of an exec in a pod."""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Sequence

from controlplane.engines.base import STDERR, STDOUT
from tests.waiting import patience


class Exec:
    """A command with the interface of engines.base.Process; both outputs arrive by one file descriptor, as in a
    real exec."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin = self.process.stdin
        self.outputs = selectors.EpollSelector()
        self.outputs.register(self.process.stdout, selectors.EVENT_READ, STDOUT)
        self.outputs.register(self.process.stderr, selectors.EVENT_READ, STDERR)

    def fileno(self) -> int:
        return self.outputs.fileno()

    def input_fileno(self) -> int:
        return self.stdin.fileno()

    def read(self, limit: int = 65536) -> tuple[int, bytes]:
        for key, _ in self.outputs.select(0):
            data = os.read(key.fd, limit)
            if data:
                return key.data, data
            self.outputs.unregister(key.fileobj)
        if not self.outputs.get_map():
            raise EOFError
        return STDOUT, b""

    def write(self, data: bytes) -> int:
        return os.write(self.stdin.fileno(), data)

    def close_input(self) -> None:
        self.stdin.close()

    def close(self) -> int | None:
        for file in (self.stdin, self.process.stdout, self.process.stderr):
            assert file is not None
            file.close()
        self.outputs.close()
        return self.process.wait(patience(10))
