"""`yard port-forward`: forward a local port to a declared port of a running job."""

from __future__ import annotations

import re
import select
import socket
import threading
from argparse import ArgumentTypeError, Namespace

from controlplane.cli.client import segment
from controlplane.cli.errors import CONFLICT, CliError
from controlplane.cli.lookup import find_job
from controlplane.cli.parsing import Parser, add_job
from controlplane.cli.podsocket import outcome
from controlplane.cli.session import Session
from controlplane.cli.websocket import BINARY, Closed, WebSocket, connect

_PORTS = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})\Z")
_LARGEST_PORT = 65_535
_READ_BYTES = 65_536


def port_forward_arguments(parser: Parser) -> None:
    parser.examples = ["yard port-forward notebook 8888", "yard port-forward notebook 9000:8888"]
    add_job(parser)
    parser.add_argument(
        "ports",
        type=_port_pair,
        metavar="[LOCAL:]PORT",
        help="a port that the job declared; LOCAL 0: any that is free",
    )
    parser.add_argument(
        "--address", default="127.0.0.1", metavar="IP", help="where to listen (default 127.0.0.1)"
    )


def port_forward(args: Namespace, session: Session) -> None:
    """Forward a local port to a port of a job until Ctrl-C. Each local connection gets its own connection to the job.
    Raise CliError if the job does not declare the port (5) or cannot be reached."""
    local, port = args.ports
    job = find_job(session, args.name)
    declared = [one["port"] for one in job.get("ports") or []]
    if port not in declared:
        hint = f"submit it with --port {port}" + (
            f", or use {', '.join(map(str, declared))}" if declared else ""
        )
        raise CliError(f"{job['name']} declares no port {port}", CONFLICT, hint)
    path = f"/ws/forward/{segment(str(job['id']))}/{port}"
    # Connect once now, so that a refusal is reported before the port is used.
    connect(session.client.url, path, session.client.authorization()).close()
    with _listening(args.address, local) as listener:
        host, bound = listener.getsockname()[:2]
        session.output.say(f"{host}:{bound} is forwarded to port {port} of {job['name']}; Ctrl-C ends it")
        try:
            while True:
                connection = listener.accept()[0]
                # Daemons, so that Ctrl-C does not wait for connections that are still open.
                threading.Thread(target=_carry, args=(session, path, connection), daemon=True).start()
        except KeyboardInterrupt:
            return


def _port_pair(text: str) -> tuple[int, int]:
    """Return (local port, job's port) for `8888` or `9000:8888`; local port 0 lets the system choose. Raise
    ArgumentTypeError for any other text."""
    match = _PORTS.match(text)
    local, port = (int(match[1] or match[2]), int(match[2])) if match else (0, 0)
    if not (1 <= port <= _LARGEST_PORT and local <= _LARGEST_PORT):
        raise ArgumentTypeError(f"{text!r} is not [LOCAL:]PORT")
    return local, port


def _listening(address: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family)
    except OSError as error:
        hint = "choose another local port: yard port-forward NAME LOCAL:PORT"
        raise CliError(
            f"cannot listen on {address}:{port}: {error.strerror or error}", CONFLICT, hint
        ) from error


def _carry(session: Session, path: str, connection: socket.socket) -> None:
    """Forward one local connection until it ends, on its own thread. An error is printed and does not affect other
    connections."""
    with connection:
        try:
            far = connect(session.client.url, path, session.client.authorization())
            try:
                _exchange(connection, far)
            finally:
                far.close()
        except Closed:
            # The user's program or the job has closed; the next connection starts anew.
            return
        except CliError as error:
            session.output.say(f"a connection failed: {error}")
        except OSError as error:
            session.output.say(f"a connection broke: {error}")


def _exchange(near: socket.socket, far: WebSocket) -> None:
    sources: list[socket.socket | WebSocket] = [near, far]
    while True:
        ready = [far] if far.has_buffered else select.select(sources, [], [])[0]
        if near in ready:
            data = near.recv(_READ_BYTES)
            # Empty: the local side has finished writing, but may still read.
            far.send(BINARY, data)
            if not data:
                sources.remove(near)
        if far in ready:
            for opcode, payload in far.receive():
                if opcode == BINARY:
                    near.sendall(payload)
                else:
                    outcome(payload)
