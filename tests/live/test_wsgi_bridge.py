"""The hop from ASGI to WSGI, as a conforming server sees it and as a WSGI application sees it."""

import asyncio
import io
import threading
from collections.abc import Iterator
from wsgiref.validate import validator

import pytest

from controlplane.http.wsgi_bridge import (
    BODY_MOST_BYTES,
    CHUNK_BYTES,
    FIRST_HOP_BYTES,
    FORM_MOST_BYTES,
    WsgiBridge,
    make_environ,
)
from tests.waiting import wait_until


def scope_of(method: str = "GET", path: str = "/", headers=(), **fields) -> dict:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "headers": list(headers),
        "client": ("10.1.2.3", 4567),
        "server": ("127.0.0.1", 8000),
        **fields,
    }


class Exchange:
    """One request: what the server would hand in, and what came out."""

    def __init__(self, body: bytes | list[bytes] = b"") -> None:
        self.parts = [body] if isinstance(body, bytes) else list(body)
        self.taken = 0
        self.sent: list[dict] = []
        self.left = asyncio.Event()

    async def receive(self) -> dict:
        if self.parts:
            self.taken += 1
            return {"type": "http.request", "body": self.parts.pop(0), "more_body": bool(self.parts)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    def header(self, name: bytes) -> bytes | None:
        return dict(self.sent[0]["headers"]).get(name)


@pytest.fixture
def serve() -> Iterator:
    hops: list[WsgiBridge] = []

    async def run(application, scope: dict, exchange: Exchange) -> Exchange:
        hop = WsgiBridge(application)
        hops.append(hop)
        await hop(scope, exchange.receive, exchange.send)
        return exchange

    yield run
    for hop in hops:
        hop.shutdown()


def echo(environ, start_response):
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-Length", str(len(body)))])
    return [body]


async def test_a_conforming_application_is_served_by_the_rules(serve):
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"5")]
    done = await serve(validator(echo), scope_of("POST", headers=headers), Exchange([b"he", b"llo"]))
    assert (done.status, done.body, done.header(b"x-length")) == (200, b"hello", b"5")
    assert not done.sent[-1].get("more_body")


def test_the_environment_says_what_was_asked():
    headers = [
        (b"host", b"example"), (b"cookie", b"a=1"), (b"cookie", b"b=2"), (b"accept", b"x"), (b"accept", b"y"),
        (b"x_forwarded_for", b"spoofed"), (b"transfer-encoding", b"chunked"),
    ]  # fmt: skip
    scope = scope_of(
        path="/prefix/caf\u00e9", root_path="/prefix", query_string=b"a=%20", headers=headers, scheme="https"
    )
    environ = make_environ(scope, io.BytesIO(b"body"), 4)
    assert environ["SCRIPT_NAME"] == "/prefix"
    assert environ["PATH_INFO"].encode("latin-1").decode() == "/caf\u00e9"
    assert environ["QUERY_STRING"] == "a=%20"
    assert environ["REMOTE_ADDR"] == "10.1.2.3"
    assert environ["SERVER_PROTOCOL"] == "HTTP/1.1"
    assert environ["wsgi.url_scheme"] == "https"
    assert environ["HTTP_COOKIE"] == "a=1; b=2"
    assert environ["HTTP_ACCEPT"] == "x,y"
    assert environ["CONTENT_LENGTH"] == "4"
    assert "HTTP_X_FORWARDED_FOR" not in environ
    assert "HTTP_TRANSFER_ENCODING" not in environ


async def test_an_announced_body_above_the_limit_is_not_read(serve):
    exchange = Exchange([b"x" * 1000] * 3)
    await serve(
        echo, scope_of("POST", headers=[(b"content-length", b"%d" % (BODY_MOST_BYTES + 1))]), exchange
    )
    assert (exchange.status, exchange.taken) == (413, 0)
    assert exchange.header(b"content-type") == b"application/problem+json"


@pytest.mark.parametrize("kind", [b"application/x-www-form-urlencoded", b" Multipart/Form-Data; boundary=b"])
async def test_a_form_is_smaller_than_other_bodies(serve, kind):
    """A form is parsed for its CSRF token before anyone looks at who sends it."""
    headers = [(b"content-type", kind)]
    exchange = Exchange([b"x" * FORM_MOST_BYTES, b"x"])
    await serve(echo, scope_of("POST", headers=headers), exchange)
    assert exchange.status == 413
    whole = Exchange(b"x" * FORM_MOST_BYTES)
    await serve(echo, scope_of("POST", headers=headers), whole)
    assert whole.status == 200


async def test_an_unannounced_body_is_read_up_to_the_limit(serve):
    exchange = Exchange([b"x" * (1 << 18)] * 8)
    await serve(echo, scope_of("POST"), exchange)
    assert (exchange.status, exchange.taken) == (413, 5)
    whole = Exchange([b"x" * (1 << 18)] * 4)
    await serve(echo, scope_of("POST"), whole)
    assert (whole.status, whole.body) == (200, b"x" * BODY_MOST_BYTES)


async def test_head_gets_headers_only(serve):
    done = await serve(echo, scope_of("HEAD"), Exchange(b"body"))
    assert (done.status, done.body) == (200, b"")


async def test_a_big_answer_is_streamed_in_order_and_closed(serve):
    chunks = [bytes([number % 256]) * 10_000 for number in range(200)]
    closed = threading.Event()

    class Body:
        def __iter__(self):
            return iter(chunks)

        def close(self):
            closed.set()

    def application(environ, start_response):
        start_response("200 OK", [])
        return Body()

    done = await serve(application, scope_of(), Exchange())
    assert done.body == b"".join(chunks)
    assert max(len(message["body"]) for message in done.sent[2:]) < CHUNK_BYTES + 10_000
    assert closed.is_set()


async def test_a_client_that_leaves_ends_a_stream_and_closes_it(serve):
    pulled: list[int] = []
    closed = threading.Event()

    class Endless:
        def __iter__(self):
            while True:
                pulled.append(1)
                yield b"x" * CHUNK_BYTES

        def close(self):
            closed.set()

    def application(environ, start_response):
        start_response("200 OK", [])
        return Endless()

    exchange = Exchange()
    exchange.left.set()
    await serve(application, scope_of(), exchange)
    assert closed.is_set()
    assert len(pulled) <= FIRST_HOP_BYTES // CHUNK_BYTES + 2


async def test_a_slow_stream_does_not_hold_the_thread(serve):
    gate = asyncio.Event()

    def application(environ, start_response):
        start_response("200 OK", [])
        return [b"x" * FIRST_HOP_BYTES, b"y"] if environ["PATH_INFO"] == "/big" else [b"small"]

    hop = WsgiBridge(application)
    slow, quick = Exchange(), Exchange()

    async def wait_then_send(message: dict) -> None:
        await gate.wait()
        slow.sent.append(message)

    streaming = asyncio.create_task(hop(scope_of(path="/big"), slow.receive, wait_then_send))
    await hop(scope_of(path="/small"), quick.receive, quick.send)
    assert quick.body == b"small"
    gate.set()
    await streaming
    assert slow.body == b"x" * FIRST_HOP_BYTES + b"y"
    hop.shutdown()


async def test_an_application_that_fails_is_answered_and_closed(serve):
    def application(environ, start_response):
        raise RuntimeError("broken")

    done = await serve(application, scope_of(), Exchange())
    assert done.status == 500
    assert b"broken" not in done.body


async def test_an_error_page_replaces_what_was_not_sent_yet(serve):
    def application(environ, start_response):
        start_response("200 OK", [("A", "1")])
        return late(start_response)

    def late(start_response):
        error = ValueError("late")
        start_response("500 Oops", [("B", "2")], (ValueError, error, None))
        yield b"sorry"

    done = await serve(application, scope_of(), Exchange())
    assert (done.status, done.body, done.header(b"b"), done.header(b"a")) == (500, b"sorry", b"2", None)


async def test_an_error_after_the_first_bytes_breaks_the_answer_off(serve):
    def application(environ, start_response):
        start_response("200 OK", [])
        yield b"x" * FIRST_HOP_BYTES
        error = ValueError("late")
        start_response("500 Oops", [], (ValueError, error, None))

    with pytest.raises(ValueError, match="late"):
        await serve(application, scope_of(), Exchange())


async def test_files_go_out_in_chunks_worth_a_hop(serve):
    content = bytes(range(256)) * 4096

    def application(environ, start_response):
        start_response("200 OK", [])
        return environ["wsgi.file_wrapper"](io.BytesIO(content), 4096)

    done = await serve(application, scope_of(), Exchange())
    assert done.body == content
    assert len(done.sent) < 20


async def test_a_client_that_leaves_before_its_body_is_there_is_not_served(serve):
    called: list[int] = []

    def application(environ, start_response):
        called.append(1)
        return []

    exchange = Exchange()
    exchange.parts = []
    exchange.left.set()
    await serve(application, scope_of("POST"), exchange)
    assert called == []
    assert exchange.sent == []


async def test_all_requests_run_on_one_thread(serve):
    threads: set[int] = set()

    def application(environ, start_response):
        threads.add(threading.get_ident())
        start_response("204 No Content", [])
        return []

    hop = WsgiBridge(application)
    exchanges = [Exchange() for _ in range(10)]
    await asyncio.gather(*(hop(scope_of(), exchange.receive, exchange.send) for exchange in exchanges))
    wait_until(lambda: all(exchange.sent for exchange in exchanges), what="all answers")
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    hop.shutdown()
