"""Shared parts of websockets into pods: how they end, and writing received data."""

from __future__ import annotations

import json
import os
from typing import Any

from controlplane.cli.errors import CONFLICT, DONE, FAILED, FORBIDDEN, UNREACHABLE, CliError
from controlplane.cli.websocket import NORMAL_CLOSURE, Closed

# The exit codes of shells for a program that is not found or cannot be started, so that scripts read them from `yard`
# as from the command itself.
_NOT_FOUND, _NOT_STARTED = 127, 126
_EXIT_CODES = {
    "not_running": CONFLICT,
    "signed_out": FORBIDDEN,
    "engine_unreachable": UNREACHABLE,
    "command_not_found": _NOT_FOUND,
    "no_shell": _NOT_FOUND,
    "command_not_executable": _NOT_STARTED,
    "working_dir_missing": _NOT_STARTED,
}
_NO_STATUS = 1005


def outcome(payload: bytes) -> dict[str, Any] | None:
    """Return a text message of the server if it reports the program's end (its `exit_code`), None for another one.
    Raise CliError if it reports an error."""
    message: dict[str, Any] = json.loads(payload)
    if message.get("op") == "error":
        code = str(message.get("code"))
        raise CliError(f"{message.get('detail')} ({code})", _EXIT_CODES.get(code, FAILED))
    return message if message.get("op") == "exit" else None


def exit_code_of_close(closed: Closed, what: str) -> int:
    """Return 0 if the websocket was closed normally. Raise CliError for any other close; `what`: the subject of its
    message."""
    if closed.code in (NORMAL_CLOSURE, _NO_STATUS):
        return DONE
    raise CliError(f"{what} ended: {closed.reason or closed.code}", FAILED)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to the file descriptor; blocks until that is done."""
    while data:
        data = data[os.write(descriptor, data) :]
