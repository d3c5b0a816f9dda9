"""`yard bash`: a shell in a running pod, over a websocket, with the terminal in raw mode."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from controlplane.cli.client import segment
from controlplane.cli.errors import DONE, FAILED, CliError
from controlplane.cli.lookup import job_id
from controlplane.cli.parsing import Parser, add_job
from controlplane.cli.podsocket import exit_code_of_close, outcome, write_all
from controlplane.cli.session import Session
from controlplane.cli.websocket import BINARY, TEXT, Closed, WebSocket, connect


def bash_arguments(parser: Parser) -> None:
    parser.examples = ["yard bash hyper1", "yard bash dist1 --rank 2", "echo nvidia-smi | yard bash hyper1"]
    add_job(parser)
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="the pod with this rank (default 0)")


def bash(args: Namespace, session: Session) -> int:
    """Run a shell in a job's pod and return the shell's exit code. If input or output is no terminal, both are copied
    unchanged, without a terminal in the pod."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        from controlplane.cli.commands.execute import run_in_pod

        return run_in_pod(session, args.name, args.rank, [], has_input=True)
    path = f"/ws/shell/{segment(job_id(session, args.name))}?rank={args.rank}{_size_query()}"
    socket = connect(session.client.url, path, session.client.authorization())
    # A shell may last for hours, in which this connection would stay idle.
    session.client.close()
    try:
        with _raw_terminal(), _resizes() as resized:
            return _exchange(socket, resized)
    finally:
        socket.close()


def _exchange(socket: WebSocket, resized: int) -> int:
    """Copy between the terminal and the shell until the shell ends, and return its exit code. `resized`: a descriptor
    that is readable when the window's size has changed. Raise CliError if the connection breaks."""
    sources: list[Any] = [socket, resized, sys.stdin.fileno()]
    try:
        while True:
            ready = [socket] if socket.has_buffered else select.select(sources, [], [])[0]
            if resized in ready:
                os.read(resized, 512)
                _send_size(socket)
            if sys.stdin.fileno() in ready and not _forward_input(socket):
                sources.remove(sys.stdin.fileno())
            if socket in ready:
                code = _show_output(socket)
                if code is not None:
                    return code
    except Closed as closed:
        return exit_code_of_close(closed, "the shell")
    except OSError as error:
        raise CliError(f"the shell's connection broke: {error}", FAILED) from error


def _forward_input(socket: WebSocket) -> bool:
    """Read from the terminal and send it to the shell. Return False if the terminal is closed, else True."""
    typed = os.read(sys.stdin.fileno(), 65_536)
    if typed:
        socket.send(BINARY, typed)
    return bool(typed)


def _show_output(socket: WebSocket) -> int | None:
    """Wait for output of the shell and write it unchanged. Return None while the shell runs, its exit code once it
    has ended (0 if it is unknown)."""
    for opcode, payload in socket.receive():
        if opcode == BINARY:
            write_all(sys.stdout.fileno(), payload)
        elif (ending := outcome(payload)) is not None:
            return int(ending.get("exit_code") or DONE)
    return None


def _size_query() -> str:
    size = os.get_terminal_size(sys.stdout.fileno())
    return f"&columns={size.columns}&rows={size.lines}"


def _send_size(socket: WebSocket) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())
    message = {"op": "resize", "columns": size.columns, "rows": size.lines}
    socket.send(TEXT, json.dumps(message).encode())


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Context manager that puts the terminal into raw mode, so that every key, Ctrl-C too, is sent to the shell. The
    former mode is restored at the end, also after an error."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _resizes() -> Iterator[int]:
    """Context manager that yields a file descriptor which becomes readable when the window's size changes."""
    reader, writer = os.pipe()
    # `set_wakeup_fd` requires it.
    os.set_blocking(writer, False)
    # A signal without a handler in Python writes nothing to the descriptor.
    previous = signal.signal(signal.SIGWINCH, lambda *_: None)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGWINCH, previous)
        os.close(reader)
        os.close(writer)
