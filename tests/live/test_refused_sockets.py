"""A refused websocket is no error of ours: nothing of it is in the log above INFO."""

import logging

import pytest
from django.conf import settings
from websockets.exceptions import InvalidStatus


@pytest.mark.parametrize(
    ("path", "status"), [("/ws/live", 401), ("/ws/other", 404), ("/ws/shell/x/0/0", 404)]
)
def test_a_refused_socket_is_logged_as_information(server, people, caplog, path: str, status: int):
    caplog.set_level(logging.INFO)
    with pytest.raises(InvalidStatus) as refused:
        server.websocket(path)
    assert refused.value.response.status_code == status
    # the same event loop answers this after it has ended with the socket
    assert server.request("GET", "/healthz").status == 200
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("origin", ["http://[", "http://a]"])
def test_an_origin_that_is_no_address_is_a_foreign_one(server, people, origin: str):
    response = server.request("GET", "/login", headers={"Origin": origin})
    assert (response.status, b"foreign_origin" in response.read()) == (403, True)
    with pytest.raises(InvalidStatus) as refused:
        server.websocket(additional_headers={"Origin": origin, "Cookie": f"{settings.SESSION_COOKIE_NAME}=x"})
    assert refused.value.response.status_code == 403
