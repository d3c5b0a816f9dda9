"""`yard dataset register`: what is told while the control plane makes the version."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Ran
from tests.cli.scripted import ScriptedServer, page

AWAY = "s3://lake cannot be used: the connection is refused; try again later."


def row(state: str = "pending", reason: Any = None) -> dict[str, Any]:
    progress = {"files": 0, "total_files": 0, "bytes": 0, "total_bytes": 0}
    return {
        "id": "r1",
        "path": "/data",
        "state": state,
        "reason": reason,
        "progress": progress,
        "version": 1,
    }


def test_what_a_registration_waits_for_is_said_once(
    server: ScriptedServer, yard: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("controlplane.cli.commands.registrations.POLL_SECONDS", 0)
    server.on("GET", "datasets", page({"id": "d1", "name": "xray"}))
    server.on("POST", "datasets/d1/registrations", row())
    waits = row(reason={"code": "unreachable", "message": AWAY})
    server.on("GET", "datasets/d1/registrations/r1", waits, waits, row(), row("ready"))
    ran = yard("dataset", "register", "xray", "/data")
    assert (ran.code, ran.out) == (0, "xray@1 is /data.\n")
    assert ran.err == f"/data is not registered yet; it is tried again: {AWAY}\n"
