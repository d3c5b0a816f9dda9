"""Our own log: no tickets in it, and every error."""

import io
import logging

import pytest
from django.test import Client, RequestFactory

from tests.cast import Cast

TICKET = "gAAAAABn" + "aZ_-09" * 30


def test_a_ticket_in_an_address_is_not_logged():
    handler = next(one for one in logging.getLogger().handlers if type(one) is logging.StreamHandler)
    path = f"/.trainyard/enter?ticket={TICKET}&next=/api/kernels"
    fault = ValueError(f"no way to {path}")
    for arguments in ((logging.INFO, "", 0, '"WebSocket %s" [accepted]', (path,), None),
                      (logging.ERROR, "", 0, "failed", (), (ValueError, fault, None))):  # fmt: skip
        text = handler.format(logging.LogRecord("uvicorn.error", *arguments))
        assert TICKET[:30] not in text
        assert "?ticket=[ticket]&next=/api/kernels" in text


@pytest.mark.parametrize(("path", "status"), [("/jobs", 500), ("/jobs", 503)])
def test_errors_are_logged(caplog, path: str, status: int):
    extra = {"status_code": status, "request": RequestFactory().get(path)}
    logging.getLogger("django.request").error("Failed: %s", path, extra=extra)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What our own handler writes."""
    handler = next(one for one in logging.getLogger().handlers if type(one) is logging.StreamHandler)
    written = io.StringIO()
    monkeypatch.setattr(handler, "stream", written)
    return written


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/users", {}, 403),
        ("/projects/team-a/edit", {}, 403),
        ("/jobs", {"Host": "evil.example"}, 400),
        ("/api/v1/audit", {}, 403),
        ("/jobs/nothing", {}, 404),
    ],
)
def test_a_refusal_is_one_line_without_a_traceback(
    log: io.StringIO, cast: Cast, path: str, headers: dict[str, str], status: int
):
    client = Client(headers=headers)
    client.force_login(cast.ben)
    assert client.get(path).status_code == status
    lines = log.getvalue().splitlines()
    assert lines, "refusals are in the log"
    assert all(" WARNING " in line for line in lines), lines


def test_an_error_of_ours_keeps_its_traceback(log: io.StringIO):
    try:
        raise ValueError("ours")
    except ValueError:
        logging.getLogger("django.request").exception("Internal Server Error", extra={"status_code": 500})
    assert "ERROR" in log.getvalue()
    assert "Traceback" in log.getvalue()
