"""Calls of the test cluster on kept connections, which its server may close between two of them."""

import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kube import KubeCluster


class Connection:
    """Answers "1", or raises `error`. `sock`: None if it is new."""

    def __init__(self, error: Exception | None = None, *, is_kept: bool = True) -> None:
        self.error, self.closed, self.timeout = error, False, 0.0
        self.sock = SimpleNamespace(settimeout=lambda seconds: None) if is_kept else None

    def request(self, *call: Any) -> None:
        if self.error:
            raise self.error

    def getresponse(self) -> Any:
        class Answer:
            status = 200

            def __enter__(self) -> "Answer":
                return self

            def __exit__(self, *error: object) -> None:
                pass

            def read(self) -> bytes:
                return b"1"

        return Answer()

    def close(self) -> None:
        self.closed = True


def cluster(*idle: Connection) -> Any:
    found = object.__new__(KubeCluster)
    found.token, found._idle = "t", list(idle)  # type: ignore[assignment]  # doubles
    return found


@pytest.mark.parametrize("error", [ConnectionResetError(), ssl.SSLEOFError(), ssl.SSLZeroReturnError()])
def test_a_call_on_a_closed_connection_is_sent_again_on_another(error: Exception):
    working, closed = Connection(), Connection(error)
    assert cluster(working, closed).api("GET", "/") == (200, 1)
    assert closed.closed


def test_a_new_connection_that_fails_is_an_error():
    new = Connection(ssl.SSLEOFError(), is_kept=False)
    with pytest.raises(ssl.SSLEOFError):
        cluster(Connection(), new).api("GET", "/")
