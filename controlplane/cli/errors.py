"""Exit codes, and the exception that carries one.

The codes are part of the interface for scripts; `docs/reference/cli.md` lists them.
"""

from __future__ import annotations

from typing import TypeVar

Changes = TypeVar("Changes")

DONE = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
FORBIDDEN = 4
CONFLICT = 5
UNREACHABLE = 6
TIMED_OUT = 7
# What a shell reports for a program ended by Ctrl-C.
INTERRUPTED = 130

MEANINGS = {
    DONE: "done",
    FAILED: "failed",
    USAGE: "usage: the command line or the request is not valid",
    NOT_FOUND: "not found, or not visible to you",
    FORBIDDEN: "forbidden, or not logged in",
    CONFLICT: "conflict with the current state",
    UNREACHABLE: "server unreachable",
    TIMED_OUT: "timed out",
    INTERRUPTED: "interrupted with Ctrl-C; jobs on the server keep running",
}

LOG_IN = "log in with: yard login URL"

# Statuses not listed here give FAILED.
_CODES_BY_STATUS = {
    400: USAGE,
    413: USAGE,
    415: USAGE,
    422: USAGE,
    401: FORBIDDEN,
    403: FORBIDDEN,
    404: NOT_FOUND,
    408: TIMED_OUT,
    409: CONFLICT,
    412: CONFLICT,
    502: UNREACHABLE,
    503: UNREACHABLE,
    504: TIMED_OUT,
}


class CliError(Exception):
    """Ends the command with `exit_code`. The message and, on a line of its own, the hint are printed to standard
    error."""

    def __init__(self, message: str, exit_code: int = FAILED, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.hint = hint


def require_changes(changes: Changes, command: str) -> Changes:
    """Return `changes`, or raise CliError (2) if it is empty: the user gave no option that changes something.
    `command`: the command whose help the hint names."""
    if not changes:
        raise CliError("nothing to change", USAGE, f"see: yard help {command}")
    return changes


def error_lines(error: CliError) -> list[str]:
    """Return the lines to print for an error: the lines of its message after `yard: ` (indented ones without it), and
    the indented hint, if any."""
    lines = [*error.message.split("\n"), *([f"  {error.hint}"] if error.hint else [])]
    return [line if line.startswith("  ") else f"yard: {line}" for line in lines]


class ApiError(CliError):
    """An error response of the server. `problem`: its problem+json document, {} if it has none; `code`: the
    document's code, or ""."""

    def __init__(self, status: int, problem: dict[str, object]) -> None:
        super().__init__(_message(status, problem), exit_code_of(status), _hint(status, problem))
        self.status = status
        self.problem = problem
        self.code = str(problem.get("code") or "")


def exit_code_of(status: int) -> int:
    """Return the exit code of `yard` for an HTTP error status: FAILED unless the table has another."""
    return _CODES_BY_STATUS.get(status, FAILED)


def _message(status: int, problem: dict[str, object]) -> str:
    """Return the message for an error response: the detail and code of the document `problem`, then a line for each
    refused field."""
    said = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
    code = f" ({problem['code']})" if problem.get("code") else ""
    errors = problem.get("errors")
    pointed = [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    if not pointed:
        return f"{said}{code}"
    is_repeated = said == "; ".join(str(error.get("detail")) for error in pointed)
    lines = (f"  {_field(error.get('pointer'))}: {error.get('detail')}" for error in pointed)
    return "\n".join(["refused" + code if is_repeated else f"{said}{code}", *lines])


def _field(pointer: object) -> str:
    """Return a JSON pointer in the form for users: `ports.0.port` for `/ports/0/port`, `request` for an empty
    pointer."""
    names = str(pointer or "").removeprefix("/").split("/")
    return ".".join(name.replace("~1", "/").replace("~0", "~") for name in names) or "request"


def _hint(status: int, problem: dict[str, object]) -> str:
    """Return the hint to log in for status 401, except after a wrong password; "" for any other status."""
    return LOG_IN if status == 401 and problem.get("code") != "wrong_credentials" else ""
