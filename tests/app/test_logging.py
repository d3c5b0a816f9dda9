"""Our own log: no tickets in it, and every error."""

import logging

import pytest
from django.test import RequestFactory

TICKET = "gAAAAABn" + "aZ_-09" * 30


def test_a_ticket_in_an_address_is_not_logged():
    handler = next(one for one in logging.getLogger().handlers if type(one) is logging.StreamHandler)
    path = f"/services/11111111-2222-4333-8444-555555555555/8888/~{TICKET}/api/kernels"
    fault = ValueError(f"no way to {path}")
    for arguments in ((logging.INFO, "", 0, '"WebSocket %s" [accepted]', (path,), None),
                      (logging.ERROR, "", 0, "failed", (), (ValueError, fault, None))):  # fmt: skip
        text = handler.format(logging.LogRecord("uvicorn.error", *arguments))
        assert TICKET[:30] not in text
        assert "8888/~[ticket]/api/kernels" in text


@pytest.mark.parametrize(("path", "status"), [("/jobs", 500), ("/jobs", 503)])
def test_errors_are_logged(caplog, path: str, status: int):
    extra = {"status_code": status, "request": RequestFactory().get(path)}
    logging.getLogger("django.request").error("Failed: %s", path, extra=extra)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
