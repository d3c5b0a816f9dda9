"""`yard doctor`: check in order everything that other commands need."""

from __future__ import annotations

import os
import stat
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from controlplane.cli import lookup
from controlplane.cli.errors import DONE, FAILED, ApiError, CliError
from controlplane.cli.parsing import Parser
from controlplane.cli.session import Session
from controlplane.cli.tables import Column

MAX_SKEW_SECONDS = 30
CHECK_COLUMNS = (
    Column("CHECK", lambda row: row["check"]),
    Column("RESULT", lambda row: row["result"]),
    Column("DETAIL", lambda row: row["detail"]),
)


class Finding(NamedTuple):
    """The result of one check: `ok`, `warning` or `failed`. `detail`: what was found and the next step. `exit_code`:
    that of `yard doctor` if this is the first failed check."""

    check: str
    result: str
    detail: str
    exit_code: int = DONE


def doctor_arguments(parser: Parser) -> None:
    parser.examples = ["yard doctor", "yard doctor -o json"]


def doctor(args: Namespace, session: Session) -> int:
    """Print the result of every check. Exit with the code of the first failed one."""
    findings = list(_findings(session))
    rows = [{"check": each.check, "result": each.result, "detail": each.detail} for each in findings]
    session.output.objects({"results": rows, "next": None, "previous": None}, CHECK_COLUMNS)
    return next((each.exit_code for each in findings if each.exit_code), DONE)


def _findings(session: Session) -> Iterator[Finding]:
    yield _config_file(session)
    reached = _tried("server", lambda: _server(session))
    yield reached
    if reached.exit_code:
        return
    yield _tried("ready", lambda: _ready(session))
    logged_in = _tried("login", lambda: _login(session))
    yield logged_in
    if not logged_in.exit_code:
        yield _tried("project", lambda: _project(session))
        yield _tried("clusters", lambda: _clusters(session))


def _config_file(session: Session) -> Finding:
    path = session.config.path
    if not os.path.exists(path):
        return Finding("config file", "ok", f"{path} does not exist; the environment and defaults are used")
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077 and session.config.context.get("token"):
        return Finding(
            "config file", "failed", f"other users can read your token: run chmod 600 {path}", FAILED
        )
    return Finding("config file", "ok", f"{path}, context {session.config.context_name}")


def _server(session: Session) -> Finding:
    response = session.client.request("GET", "/healthz")
    skew = _skew_seconds(response.headers.get("Date"))
    if abs(skew) > MAX_SKEW_SECONDS:
        detail = f"{session.config.url} answers, but its clock is {skew:+.0f} s from this machine's"
        return Finding("server", "warning", detail)
    return Finding("server", "ok", f"{session.config.url} answers")


def _ready(session: Session) -> Finding:
    session.client.request("GET", "/readyz")
    return Finding("ready", "ok", "migrations are applied and the loop runs")


def _login(session: Session) -> Finding:
    who = session.get("whoami")
    return Finding("login", "ok", f"as {who['username']}")


def _project(session: Session) -> Finding:
    name = session.config.project
    if not name:
        return Finding("project", "warning", "none chosen: yard config project NAME, or -p each time")
    session.get(lookup.project_path(name))
    return Finding("project", "ok", name)


def _clusters(session: Session) -> Finding:
    """Return whether clusters are attached, reachable and, for an admin, whether their own checks passed, as a
    finding."""
    clusters = session.client.pages("clusters", {}, 500)["results"]
    troubles = [trouble for cluster in clusters if (trouble := _trouble(cluster))]
    if troubles:
        return Finding("clusters", "warning", "; ".join(troubles))
    names = ", ".join(cluster["name"] for cluster in clusters)
    return Finding("clusters", "ok", names) if names else Finding("clusters", "warning", "none is attached")


def _trouble(cluster: dict[str, Any]) -> str:
    name, status = cluster["name"], cluster["status"]
    if status["state"] != "attached":
        return f"{name} is {status['state']}: yard describe cluster {name}"
    if not status["is_reachable"]:
        return f"{name} does not answer: {status['unreachable_message']}"
    odd = [check["name"] for check in status["checks"] if check["outcome"] != "ok"]
    return f"{name} lacks {', '.join(odd)}: yard describe cluster {name}" if odd else ""


def _tried(check: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except ApiError as error:
        return Finding(check, "failed", _advice(error), error.exit_code)
    except CliError as error:
        return Finding(check, "failed", error.message, error.exit_code)


def _advice(error: ApiError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _skew_seconds(date: str | None) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time() if date else 0.0
    except ValueError:
        return 0.0
