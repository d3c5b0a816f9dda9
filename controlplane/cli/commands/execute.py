"""`yard exec`: a command in a running pod, over a websocket, without a terminal."""

from __future__ import annotations

import os
import select
import sys
from argparse import Namespace
from typing import Any
from urllib.parse import urlencode

from controlplane.cli.client import segment
from controlplane.cli.errors import FAILED, USAGE, CliError
from controlplane.cli.lookup import job_id
from controlplane.cli.parsing import Parser, add_flag, add_job
from controlplane.cli.podsocket import exit_code_of_close, outcome, write_all
from controlplane.cli.session import Session
from controlplane.cli.websocket import BINARY, TEXT, Closed, WebSocket, connect

_END_OF_INPUT = b'{"op":"end_of_input"}'


def exec_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard exec hyper1 -- nvidia-smi",
        "yard exec dist1 --rank 2 -- cat /tmp/trace.json > trace.json",
        "yard exec hyper1 -i -- tar x < data.tar",
    ]
    add_job(parser)
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="the pod with this rank (default 0)")
    add_flag(parser, "-i", "--stdin", about="pass standard input to the command")


def exec_(args: Namespace, session: Session) -> int:
    """Run a command in a pod. Exit with its exit code, 127 if the pod has no such program."""
    if not args.trailing:
        raise CliError(
            "exec: give the command after --",
            USAGE,
            f"for a terminal: yard bash {args.name}; see: yard help exec",
        )
    return run_in_pod(session, args.name, args.rank, args.trailing, has_input=args.stdin)


def run_in_pod(session: Session, name: str, rank: int, command: list[str], *, has_input: bool) -> int:
    """Run a command, or a shell if it is empty, in one pod of a job and copy its output to ours. `name`: of the job,
    or its id; `has_input`: pass our standard input to it. Return its exit code. Raise CliError if it cannot run or
    the connection breaks."""
    query = urlencode([("rank", rank), *(("command", word) for word in command)])
    path = f"/ws/exec/{segment(job_id(session, name))}?{query}"
    socket = connect(session.client.url, path, session.client.authorization())
    session.client.close()
    try:
        return _exchange(socket, has_input)
    except Closed as closed:
        return exit_code_of_close(closed, "the command")
    except OSError as error:
        raise CliError(f"the connection to the pod broke: {error}", FAILED) from error
    finally:
        socket.close()


def _exchange(socket: WebSocket, has_input: bool) -> int:
    sources: list[Any] = [socket]
    # None if this process was started with its standard input closed.
    if has_input and sys.stdin is not None:
        sources.append(sys.stdin.fileno())
    else:
        socket.send(TEXT, _END_OF_INPUT)
    while True:
        ready = [socket] if socket.has_buffered else select.select(sources, [], [])[0]
        # Our input is the last source in the list; at its end it is removed.
        if ready[-1] is not socket and not _forward_input(socket):
            sources.pop()
        if socket in ready and (code := _show_output(socket)) is not None:
            return code


def _forward_input(socket: WebSocket) -> bool:
    """Send the next piece of our standard input to the command; return False at its end."""
    piece = os.read(sys.stdin.fileno(), 65_536)
    if piece:
        socket.send(BINARY, piece)
    else:
        socket.send(TEXT, _END_OF_INPUT)
    return bool(piece)


def _show_output(socket: WebSocket) -> int | None:
    """Write the command's output unchanged. Return its exit code when it has ended (1 if it has none), None before."""
    for opcode, payload in socket.receive():
        if opcode == BINARY:
            # The first byte names the stream like a file descriptor: 1 or 2.
            write_all(payload[0], payload[1:])
        elif (ending := outcome(payload)) is not None:
            code = ending.get("exit_code")
            return FAILED if code is None else int(code)
    return None
