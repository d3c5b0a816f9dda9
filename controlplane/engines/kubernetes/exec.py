"""Terminals and commands in pods, through the API server's exec."""

from __future__ import annotations

import logging
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

import orjson

from controlplane.engines.base import (
    POD_NOT_RUNNING,
    RUN_SCRIPT,
    STDERR,
    STDOUT,
    EngineRefused,
    EngineUnreachable,
)
from controlplane.engines.kubernetes.api_errors import pod_refusals
from controlplane.kubernetes_api.channel_socket import V4_PROTOCOL, V5_PROTOCOL, ChannelSocket
from controlplane.kubernetes_api.credentials import Access
from controlplane.kubernetes_api.errors import ApiError

log = logging.getLogger(__name__)

# The image has neither bash nor sh.
NO_SHELL = "no_shell"

_PROTOCOLS = (V5_PROTOCOL, V4_PROTOCOL)
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE = range(5)
_PIECE = struct.Struct(">BI")
# For a prompt, or for the reason why there is none.
_FIRST_WORD_SECONDS = 5.0
_ENDING_SECONDS = 2.0

# The outer sh leads the session. It carries a mark in its arguments, and what runs in it carries it in its environment.
_START = (
    'export TRAINYARD_SHELL="$0" TERM="${TERM:-xterm-256color}";'
    " if command -v bash >/dev/null 2>&1; then bash; else sh; fi; exit $?"
)
_RUN = f'export TRAINYARD_SHELL="$0"; {RUN_SCRIPT}'
# Ends every process of every session in which a process has the mark $1. A connection that is cut ends some or none of
# them. Only what every shell has built in, for images that have nothing else.
_END = """
mark=$1; sessions=
session_of() { session=none; read -r line < "$1/stat" || return; set -- ${line##*) }; session=$4; }
for p in /proc/[0-9]*; do
  [ "${p#/proc/}" = $$ ] && continue
  for f in cmdline environ; do
    while line=; read -r line || [ -n "$line" ]; do
      case "$line" in *"$mark"*) session_of "$p"; sessions="$sessions $session ";; esac
    done < "$p/$f"
  done
done 2>/dev/null
[ -n "$sessions" ] || exit 0
for p in /proc/[0-9]*; do
  session_of "$p"
  case "$sessions" in *" $session "*) kill -9 "${p#/proc/}";; esac
done 2>/dev/null
exit 0
"""


def open_shell(access: Access, namespace: str, pod: str, container: str, columns: int, rows: int) -> PodShell:
    """Open a terminal with bash, else sh. Raises EngineRefused, EngineUnreachable."""
    shell = PodShell(access, namespace, pod, container)
    shell.resize(columns, rows)
    shell.require_start()
    return shell


class _Exec:
    """A command in a container over one exec connection, and the end of its session: what a terminal and a plain
    command have in common. Raises EngineRefused, EngineUnreachable."""

    def __init__(
        self, access: Access, namespace: str, pod: str, container: str, script: str, command: Sequence[str]
    ) -> None:
        self._access, self._pod, self._container = access, pod, container
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
        self._mark = f"trainyard-shell-{secrets.token_hex(8)}"
        self._messages = _ExecMessages(self.is_terminal)
        output = "tty" if self.is_terminal else "stderr"
        asked = [("stdin", "true"), ("stdout", "true"), (output, "true")]
        query = [*asked, *self._command(script, self._mark, *command)]
        with pod_refusals(pod):
            self._channel = ChannelSocket(
                access,
                self._path,
                query,
                _PROTOCOLS,
                _STDIN,
                self._messages.take,
                is_closable=not self.is_terminal,
            )
        self._is_closed = False

    is_terminal = True

    def fileno(self) -> int:
        return self._channel.near.fileno()

    def write(self, data: bytes) -> int:
        try:
            return self._channel.near.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            # It has ended, which `read` tells.
            return len(data)

    def close(self) -> int | None:
        """End the rest of the session in the container, then close the connection."""
        if self._is_closed:
            return None
        self._is_closed = True
        exit_code = self._messages.exit_code()
        if self._messages.status is None or self.is_terminal:
            # First: once the connection is gone, the session has no leader to be known by.
            self._end_session()
        self._channel.near.close()
        self._channel.close()
        return exit_code

    def _end_session(self) -> None:
        """End the session's processes. Ignores a pod that is gone or cannot be reached."""
        query = [("stdout", "true"), *self._command(_END, "trainyard-shell-end", self._mark)]
        try:
            channel = ChannelSocket(
                self._access, self._path, query, _PROTOCOLS, _STDIN, lambda _channel, _data: b""
            )
        except (ApiError, EngineUnreachable) as error:
            log.info("The session of a closed shell in %s could not be ended: %s", self._pod, error)
            return
        # A node that does not answer must not hold up the caller.
        channel.ended.wait(_ENDING_SECONDS)
        channel.near.close()
        channel.close()

    def _command(self, script: str, *arguments: str) -> list[tuple[str, str]]:
        words = ["sh", "-c", script, *arguments]
        return [("container", self._container), *(("command", word) for word in words)]


class PodShell(_Exec):
    """See engines.base.Shell."""

    def __init__(self, access: Access, namespace: str, pod: str, container: str) -> None:
        super().__init__(access, namespace, pod, container, _START, ())

    def require_start(self) -> None:
        """Wait for the prompt. Raises EngineRefused where the shell could not be started."""
        self._messages.decided.wait(_FIRST_WORD_SECONDS)
        if (
            self._messages.has_output
            or self._messages.status is None
            or self._messages.exit_code() is not None
        ):
            return
        words = str(self._messages.status.get("message") or "no reason was given")
        self.close()
        code = (
            NO_SHELL if "executable file not found" in words or "no such file" in words else POD_NOT_RUNNING
        )
        raise EngineRefused(code, f"There is no shell in {self._pod}: {words}")

    def read(self, limit: int = 65536) -> bytes:
        return self._channel.near.recv(limit)

    def resize(self, columns: int, rows: int) -> None:
        size = {"Width": max(1, min(columns, 1000)), "Height": max(1, min(rows, 1000))}
        self._channel.send(_RESIZE, orjson.dumps(size))


class PodProcess(_Exec):
    """See engines.base.Process. A server older than Kubernetes 1.30 cannot be asked to end the command's input."""

    is_terminal = False

    def __init__(
        self, access: Access, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> None:
        self._unread = bytearray()
        super().__init__(access, namespace, pod, container, _RUN, command)

    def input_fileno(self) -> int:
        return self.fileno()

    def read(self, limit: int = 65536) -> tuple[int, bytes]:
        """Return the next output and its number. The refusal of a command that could not be started is its error
        output. Raises EOFError at the end."""
        if (piece := self._piece()) is not None:
            return piece
        try:
            received = self._channel.near.recv(limit, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return STDOUT, b""
        self._unread += received
        if not received:
            self._unread += self._messages.refusal()
        if (piece := self._piece()) is None and not received:
            raise EOFError
        return piece or (STDOUT, b"")

    def _piece(self) -> tuple[int, bytes] | None:
        if len(self._unread) < _PIECE.size:
            return None
        output, size = _PIECE.unpack_from(self._unread)
        if len(self._unread) < _PIECE.size + size:
            return None
        data = bytes(self._unread[_PIECE.size : _PIECE.size + size])
        del self._unread[: _PIECE.size + size]
        return output, data

    def close_input(self) -> None:
        self._channel.near.shutdown(socket.SHUT_WR)


class _ExecMessages:
    """Messages of an exec connection: output, and at the end a Status with the exit code."""

    def __init__(self, is_terminal: bool) -> None:
        # It runs, or it could not be started.
        self.decided = threading.Event()
        self.has_output = False
        self._is_terminal, self._is_refusal_read = is_terminal, False
        self.status: dict[str, Any] | None = None

    def take(self, channel: int, data: bytes) -> bytes:
        if channel in (_STDOUT, _STDERR) and data:
            self.has_output = True
            self.decided.set()
            return data if self._is_terminal else _PIECE.pack(channel, len(data)) + data
        if channel == _STATUS and data:
            self.status = orjson.loads(data)
            self.decided.set()
        return b""

    def exit_code(self) -> int | None:
        """Return the command's exit code, None if it has not ended or was not started."""
        if self.status is None or self.status.get("status") == "Success":
            return None if self.status is None else 0
        causes = (self.status.get("details") or {}).get("causes") or ()
        codes = [cause.get("message", "") for cause in causes if cause.get("reason") == "ExitCode"]
        return int(codes[0]) if codes and codes[0].isdecimal() else None

    def refusal(self) -> bytes:
        """Return, once, why the command did not run, as a piece of its error output; empty where it ran."""
        if self.status is None or self.exit_code() is not None or self._is_refusal_read:
            return b""
        self._is_refusal_read = True
        words = f"{self.status.get('message') or 'the command could not be started'}\n".encode()
        return _PIECE.pack(STDERR, len(words)) + words
