"""The end of a reflector, whatever its stream still gives."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controlplane.kubernetes_api.reflector import Reflector
from tests.waiting import patience, wait_until


class Stream:
    """A watch that is silent until it is aborted, and then gives bytes as they came over the wire."""

    def __init__(self) -> None:
        self.aborted = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        self.aborted.wait(patience(10))
        yield b"\x17\x03\x03\xff"

    def abort(self) -> None:
        self.aborted.set()


class Server:
    """An API server with nothing on it."""

    def __init__(self) -> None:
        self.watched = threading.Event()

    def get(self, *_arguments: Any, **_options: Any) -> dict[str, Any]:
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    @contextmanager
    def stream(self, *_arguments: Any, **_options: Any) -> Iterator[Stream]:
        self.watched.set()
        yield Stream()


def test_what_an_aborted_stream_gives_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = Server()
    reflector = Reflector(server, "/api/v1/pods")  # type: ignore[arg-type]  # a stand-in
    reflector.start()
    wait_until(server.watched.is_set, what="the watch")
    reflector.close()
    assert not reflector._thread.is_alive()
    assert caplog.text == ""
