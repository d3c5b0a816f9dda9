"""Pages that read from a bucket which sends a byte now and then."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from datasets.queries import lake as lake_module
from datasets.queries import page_reads
from datasets.queries.page_reads import PageReads
from datasets.storage.base import Blocked
from datasets.storage.bucket_config import BucketConfig
from datasets.storage.circuit_breaker import CircuitBreaker
from tests.cast import Cast
from tests.datasets import make_dataset, make_version
from tests.serving import serving
from tests.waiting import wait_until


class Dripping(ThreadingHTTPServer):
    """A server whose answers come a byte at a time and end when `stopped` is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Drip)
        self.stopped, self.asked = threading.Event(), 0


class Drip(BaseHTTPRequestHandler):
    server: Dripping

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):  # the client gave up
            while not self.server.stopped.wait(0.1):
                self.wfile.write(b" ")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def dripping(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dripping]:
    """Such a server, and threads of pages that have ended when it has."""
    with Dripping() as server, ThreadPoolExecutor(2) as threads, serving(server):
        monkeypatch.setattr(page_reads, "_threads", threads)
        monkeypatch.setattr(page_reads, "_breaker", CircuitBreaker(600))
        yield server
        server.stopped.set()


def test_a_read_that_had_no_thread_yet_does_not_shut_the_pages_of_others(
    dripping: Dripping, monkeypatch: pytest.MonkeyPatch
):
    config = BucketConfig(
        "lake", "", f"http://127.0.0.1:{dripping.server_port}", "us-east-1", "key", "secret"
    )
    monkeypatch.setattr(settings, "LAKE_BUCKET", config)
    monkeypatch.setattr(settings, "LAKE_MAY_BE_INSIDE", True)
    busy = [page_reads._threads.submit(dripping.stopped.wait) for _ in range(2)]
    with monkeypatch.context() as short:
        short.setattr(page_reads, "PAGE_SECONDS", 0.05)
        with pytest.raises(Blocked, match="Other pages keep"):
            PageReads()(lambda: "read")
    dripping.stopped.set()
    wait(busy)
    assert PageReads()(lambda: "read") == "read"


@pytest.mark.django_db
def test_a_bucket_that_sends_a_byte_now_and_then_holds_a_page_for_seconds_in_total(
    cast: Cast, own_lakes: Path, dripping: Dripping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    version = make_version(make_dataset(cast.project), {"a.txt": "alpha"})
    lake_module._lakes.pop(cast.project.pk).close()
    lake_module._manifests.clear()
    monkeypatch.setattr(lake_module, "_is_web", threading.Event())
    lake_module.limit_waits()
    monkeypatch.setattr(page_reads, "PAGE_SECONDS", 0.5)
    monkeypatch.setattr(settings, "LAKE_DIR", tmp_path / "bucket")
    config = BucketConfig(
        "lake", "", f"http://127.0.0.1:{dripping.server_port}", "us-east-1", "key", "secret"
    )
    monkeypatch.setattr(settings, "LAKE_BUCKET", config)
    monkeypatch.setattr(settings, "LAKE_MAY_BE_INSIDE", True)
    page = Client()
    page.force_login(cast.vera)
    address = f"/datasets/{version.dataset_id}/files?file=a.txt"
    assert "did not answer within 0.5 s" in page.get(address).content.decode()
    # the next page is not held at all, and adds no request to the one under way
    assert "did not answer a moment ago" in page.get(address).content.decode()
    # The read may still have been on its way when the page gave up.
    wait_until(lambda: dripping.asked > 0, 60, "the request of the read")
    assert dripping.asked == 1
    assert page.get(f"/datasets/{version.dataset_id}").status_code == 200
