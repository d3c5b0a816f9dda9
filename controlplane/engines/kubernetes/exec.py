"""Terminals and commands in the main containers of pods, by the API server's exec."""

from __future__ import annotations

import logging
import secrets
import socket
import struct
import threading
from collections.abc import Sequence

import orjson

from controlplane.engines import base
from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.api_errors import pod_refusals
from controlplane.kubernetes_api.channel_socket import V4_PROTOCOL, V5_PROTOCOL, ChannelSocket
from controlplane.kubernetes_api.credentials import Access
from controlplane.kubernetes_api.errors import ApiError

log = logging.getLogger(__name__)

# The code for an image that has neither bash nor sh.
NO_SHELL = "no_shell"

_PROTOCOLS = (V5_PROTOCOL, V4_PROTOCOL)
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE = range(5)
_PIECE = struct.Struct(">BI")
# How long to wait for a prompt, or for the error message that explains its absence.
_FIRST_WORD_SECONDS = 5.0
_ENDING_SECONDS = 2.0

# The outer sh leads the session. It has a mark in its arguments; its children have the mark in their environment.
_START = (
    'export TRAINYARD_SHELL="$0" TERM="${TERM:-xterm-256color}";'
    " if command -v bash >/dev/null 2>&1; then bash; else sh; fi; exit $?"
)
_RUN = f'export TRAINYARD_SHELL="$0"; {base.RUN_SCRIPT}'
# Kills every process of every session in which a process has the mark $1: cutting the connection may leave some
# running. Uses only shell built-ins, because the image may have no other programs.
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


class _Exec:
    """A command in a pod over one exec connection; the common part of terminals and plain commands. Raise
    EngineRefused or EngineUnreachable if the connection is refused or fails."""

    is_terminal = True

    def __init__(
        self, access: Access, namespace: str, pod: str, script: str, command: Sequence[str] = ()
    ) -> None:
        self._access, self._pod = access, pod
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
        self._mark = f"trainyard-shell-{secrets.token_hex(8)}"
        # Set when the command runs or could not be started.
        self._decided = threading.Event()
        self._has_output = self._is_closed = False
        # Of an ended command its exit code, if known; of one that could not be started the server's reason.
        self._exit_code: int | None = None
        self._refusal, self._has_ended = "", False
        output = "tty" if self.is_terminal else "stderr"
        streams = [("stdin", "true"), ("stdout", "true"), (output, "true")]
        query = [*streams, *_command(script, self._mark, *command)]
        with pod_refusals(pod):
            self._channel = ChannelSocket(
                access, self._path, query, _PROTOCOLS, _STDIN, self._take, is_closable=not self.is_terminal
            )

    def fileno(self) -> int:
        return self._channel.near.fileno()

    def write(self, data: bytes) -> int:
        try:
            return self._channel.near.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            # The command has ended; `read` reports that.
            return len(data)

    def close(self) -> int | None:
        """Kill the remaining processes of the command's session, then close the connection. Return the exit code,
        None if unknown or for a repeat."""
        if self._is_closed:
            return None
        self._is_closed = True
        exit_code = self._exit_code
        if self.is_terminal or not self._has_ended:
            # Done first, because the session can no longer be identified once its leader is gone with the
            # connection.
            self._end_session()
        self._channel.near.close()
        self._channel.close()
        return exit_code

    def _end_session(self) -> None:
        """Kill the session's processes by a second exec. Does nothing if the pod is gone or unreachable."""
        query = [("stdout", "true"), *_command(_END, "trainyard-shell-end", self._mark)]
        try:
            channel = ChannelSocket(
                self._access, self._path, query, _PROTOCOLS, _STDIN, lambda _channel, _data: b""
            )
        except (ApiError, EngineUnreachable) as error:
            log.info("The session of a closed shell in %s could not be ended: %s", self._pod, error)
            return
        # Bounded, because a node that does not answer must not delay the caller.
        channel.ended.wait(_ENDING_SECONDS)
        channel.near.close()
        channel.close()

    def _take(self, channel: int, data: bytes) -> bytes:
        """Handle one message of the server, and return the bytes of it that the caller reads. Runs on the event
        loop's thread."""
        if channel in (_STDOUT, _STDERR) and data:
            self._has_output = True
            self._decided.set()
            return data if self.is_terminal else _PIECE.pack(channel, len(data)) + data
        if channel == _STATUS and data:
            status = orjson.loads(data)
            causes = (status.get("details") or {}).get("causes") or ()
            codes = [cause.get("message", "") for cause in causes if cause.get("reason") == "ExitCode"]
            code = "0" if status.get("status") == "Success" else "".join(codes[:1])
            self._exit_code = int(code) if code.isdecimal() else None
            self._refusal = "" if code.isdecimal() else str(status.get("message") or "no reason was given")
            self._has_ended = True
            self._decided.set()
        return b""


class PodShell(_Exec):
    """A terminal with bash, else sh, in a pod; implements engines.base.Shell. Waits up to 5 s for the first output.
    Raise EngineRefused if the pod does not run or has no shell, EngineUnreachable if the cluster does not answer."""

    def __init__(self, access: Access, namespace: str, pod: str, columns: int, rows: int) -> None:
        super().__init__(access, namespace, pod, _START)
        self.resize(columns, rows)
        self._decided.wait(_FIRST_WORD_SECONDS)
        if not self._has_output and (words := self._refusal):
            self.close()
            is_absent = "executable file not found" in words or "no such file" in words
            code = NO_SHELL if is_absent else base.POD_NOT_RUNNING
            raise EngineRefused(code, f"There is no shell in {pod}: {words}")

    def read(self, limit: int = 65536) -> bytes:
        return self._channel.near.recv(limit)

    def resize(self, columns: int, rows: int) -> None:
        size = {"Width": max(1, min(columns, 1000)), "Height": max(1, min(rows, 1000))}
        self._channel.send(_RESIZE, orjson.dumps(size))


class PodProcess(_Exec):
    """A command in a pod, without a terminal; implements engines.base.Process. `close_input` has no effect on the
    command before Kubernetes 1.30."""

    is_terminal = False

    def __init__(self, access: Access, namespace: str, pod: str, command: Sequence[str]) -> None:
        self._unread = bytearray()
        super().__init__(access, namespace, pod, _RUN, command)

    def input_fileno(self) -> int:
        return self.fileno()

    def read(self, limit: int = 65536) -> tuple[int, bytes]:
        """Return (STDOUT or STDERR, bytes) without blocking. If the command could not be started, the reason is its
        error output. Raise EOFError at the end."""
        if (piece := self._piece()) is not None:
            return piece
        try:
            received = self._channel.near.recv(limit, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return base.STDOUT, b""
        self._unread += received
        if not received and self._refusal:
            words, self._refusal = self._refusal, ""
            return base.STDERR, f"{words}\n".encode()
        if (piece := self._piece()) is None and not received:
            raise EOFError
        return piece or (base.STDOUT, b"")

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


def _command(script: str, *arguments: str) -> list[tuple[str, str]]:
    words = ("sh", "-c", script, *arguments)
    return [("container", names.MAIN_CONTAINER), *(("command", word) for word in words)]
