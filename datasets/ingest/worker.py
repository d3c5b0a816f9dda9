"""A process that reads files for a sync. One per core, since hashing a file costs more Python time than disk
time.

The process is started as a new program and not by fork, because `yard` and the control plane have threads. Messages
on its standard input and output are a length and a marshalled value: a tuple or, while it waits, a text for the user.
The process ends when its input ends.
"""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from datasets.ingest.messages import read_message, write_message
from datasets.ingest.reader import Failed, Read, Reader, Sink, Wanted

_ROOT = Path(__file__).resolve().parent.parent.parent
# Between code and message of a refusal, on standard error.
_AFTER_CODE = "\x1f"
# -I -S: without site packages and environment, which reduces the start to 20 ms.
_START = """import sys
sys.path.insert(0, sys.argv[1])
__import__(sys.argv[2], fromlist=["main"]).main()"""

# For glibc: keep freed memory. By default it goes back to the kernel after each pack, and its pages
# are then made anew: an eighth of the CPU time with files of 400 KB.
_KEPT_BYTES = str(1 << 30)
_MEMORY = {"MALLOC_TRIM_THRESHOLD_": _KEPT_BYTES, "MALLOC_MMAP_THRESHOLD_": _KEPT_BYTES}

# "module:function" and its arguments, as plain values that can be marshalled.
SinkSpec = tuple[str, tuple[Any, ...]]
# Takes a line about what a sink waits for.
Say = Callable[[str], None]


def silent(_: str) -> None:
    """Ignore the line; for callers that show no messages."""


def open_sink(spec: SinkSpec, say: Say = silent) -> Sink:
    """Return the sink that `spec` describes: the name of a function, as module:name, and its arguments. `say`:
    gets a line when the sink waits."""
    module, _, name = spec[0].partition(":")
    opener: Callable[..., Sink] = getattr(import_module(module), name)
    return opener(*spec[1], say=say)


class WorkerFailed(Exception):
    """A worker ended early; the message is its last line of error output. `code`: that of the sink's refusal (see
    datasets.storage.base.Blocked), "" for another failure."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Child:
    """A child process that runs `main()` of a module, which gets `head` as its first message. `held`: descriptors that
    stay open in it, under the same numbers. It ends when this object's process does."""

    def __init__(self, module: str, head: tuple[Any, ...], held: Sequence[int] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, str(_ROOT), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | _MEMORY,
            pass_fds=held,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._input, self.output = self._process.stdin, self._process.stdout
        self.send(head)

    def send(self, frame: tuple[Any, ...]) -> None:
        """Send a message. Raises WorkerFailed if the process has ended."""
        try:
            write_message(self._input, frame)
        except BrokenPipeError as error:
            raise self._failure() from error

    def received(self) -> Any:
        """Wait for the next message and return it. Raises WorkerFailed if the process ended."""
        answer = read_message(self._read)
        if answer is None:
            raise self._failure()
        return answer

    def kill(self) -> None:
        """Kill the process. Safe to repeat."""
        self._process.kill()
        self._process.communicate()

    def _read(self, length: int) -> bytes:
        # Unbuffered: a message that a buffer held would not wake who selects on `output`.
        found = b""
        while len(found) < length and (piece := os.read(self.output.fileno(), length - len(found))):
            found += piece
        return found

    def _failure(self) -> WorkerFailed:
        assert self._process.stderr
        said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        code, separator, message = (said[-1] if said else "A child process was killed.").partition(
            _AFTER_CODE
        )
        return WorkerFailed(message, code) if separator else WorkerFailed(code)


class Worker(Child):
    """A child process that reads files below `root` into a sink. `say` gets a line for the user when the sink
    waits."""

    def __init__(self, root: bytes, sink: SinkSpec, say: Say = silent) -> None:
        self._say, self._is_flushing = say, False
        super().__init__(__name__, (root, sink))

    def start(self, files: Sequence[Wanted]) -> None:
        """Send files to read to the worker; `results` returns the answer. Raises WorkerFailed if it has ended."""
        self.send(tuple(files))

    def results(self) -> bytes | Sequence[Read | Failed] | None:
        """Wait for the next message and return the answer to `start`: the digests, concatenated, if all files are as
        the walk found them, else what became of each. None if it was a line for the user. Raises WorkerFailed if the
        worker ended early."""
        answer: bytes | tuple[Read | Failed, ...] | str = self.received()
        if isinstance(answer, str):
            self._say(answer)
            return None
        return answer

    def begin_flush(self) -> None:
        """Make the worker flush what it stored; `finish` waits for it. May be repeated. Raises WorkerFailed if the
        worker ended early."""
        if not self._is_flushing:
            self._is_flushing = True
            self.send(())

    def finish(self) -> None:
        """Have the worker flush what it stored, wait for that, and end it. Raises WorkerFailed if it ended early."""
        self.begin_flush()
        while self.results() is None:
            pass
        self.kill()


def _brief(found: Sequence[Read | Failed]) -> bytes | tuple[Read | Failed, ...]:
    digests = [one for one in found if isinstance(one, bytes)]
    return b"".join(digests) if len(digests) == len(found) else tuple(found)


def main() -> None:
    """Run the worker: read messages from standard input until it ends. Exits with code 1 after an error."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    head = read_message(source.read)
    if head is None:
        return
    # A short process that makes no cycles; looking for them takes a twentieth of its time.
    gc.disable()
    # Lines about a wait come from a thread of the sink.
    writing = threading.Lock()

    def send(frame: tuple[Any, ...] | bytes | str) -> None:
        with writing:
            write_message(target, frame)

    reader = Reader(head[0], open_sink(head[1], send))
    try:
        while (files := read_message(source.read)) is not None:
            if not files:
                reader.flush()
            send(_brief(reader.read(files)))
    except Exception as error:  # noqa: BLE001  # whatever it is, the parent raises it in this process's name
        code, words = getattr(error, "code", ""), str(error) or type(error).__name__
        sys.stderr.write(f"{code}{_AFTER_CODE}{words}\n" if code else f"{words}\n")
        sys.stderr.flush()
        os._exit(1)
    # Exit without cleanup: everything that matters was flushed.
    os._exit(0)
