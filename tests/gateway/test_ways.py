"""How the gateway comes to a pod's port: through its engine, whatever stream that opens."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading

import pytest

from controlplane.config.service_hosts import ServiceAddress
from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.memory import MemoryEngine
from controlplane.http.departure import LEFT, until_gone
from controlplane.live.asgi import Message
from controlplane.live.identity import Credential
from jobs.gateway import admission, forward, proxy, sockets, upstream
from jobs.gateway.admission import NoAnswer, NotRunning, Service, find_service
from jobs.gateway.upstream import exchange, public_address
from jobs.models import Pod
from tests.builders import make_job, make_project
from tests.loop.plant import Plant
from tests.waiting import patience, wait_until


class Tunnel(MemoryEngine):
    """An engine whose way to a port is no TCP connection of ours; `hold` keeps it from opening."""

    def __init__(self) -> None:
        super().__init__({"nodes": {}})
        self.hold = threading.Event()
        self.hold.set()
        self.error: Exception | None = None
        self.near: list[socket.socket] = []
        self.far: list[socket.socket] = []

    def open_port(self, pod_name: str, port: int) -> socket.socket:
        assert self.hold.wait(patience(30))
        if self.error is not None:
            raise self.error
        near, far = socket.socketpair()
        self.near.append(near)
        self.far.append(far)
        return near

    def close(self) -> None:
        for far in self.far:
            far.close()


@pytest.fixture
def tunnel():
    engine = Tunnel()
    yield engine
    engine.close()


def service(engine: Tunnel) -> Service:
    return Service("job", 8888, "pod-1-0", engine, 1)


async def test_a_request_goes_through_a_tunnel(tunnel):
    async with exchange(service(tunnel)) as pod:
        assert pod.address == "127.0.0.1:8888"  # as the pod's server knows itself
        far = tunnel.far[0]
        far.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        gone = asyncio.Event()

        async def receive():
            await gone.wait()

        request = asyncio.create_task(pod.send("GET", b"/x", [(b"host", pod.address.encode())], receive))
        response = await pod.start()
        assert response.status_code == 200
        assert b"".join([piece async for piece in pod.body()]) == b"hi"
        request.cancel()
        assert far.recv(1000).startswith(b"GET /x HTTP/1.1")


@pytest.mark.parametrize(
    ("error", "words", "status"),
    [
        (EngineRefused("pod_not_running", "Pod x is not running."), "Pod x is not running", 503),
        (EngineUnreachable("no route"), "its cluster does not answer: no route", 503),
        (ConnectionRefusedError(), "nothing listens on the port yet", 503),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), "the connection to it timed out", 504),
        (
            OSError(errno.EHOSTUNREACH, "No route to host"),
            "its node cannot be reached: No route to host",
            502,
        ),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "its node cannot be reached", 502),
    ],
)
async def test_what_keeps_a_port_from_opening_is_said_in_words(tunnel, error, words, status):
    tunnel.error = error
    with pytest.raises(NoAnswer, match=words) as refusal:
        await service(tunnel).connect()
    assert refusal.value.status == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), 504),
        (OSError(errno.EHOSTUNREACH, "No route to host"), 502),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), 503),
    ],
)
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
async def test_a_connection_that_breaks_is_a_named_refusal(tunnel, monkeypatch, error, status, accept):
    async def read(_reader, _size):
        raise error

    async def wait():
        await asyncio.Event().wait()

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    monkeypatch.setattr(asyncio.StreamReader, "read", read)
    monkeypatch.setattr(proxy, "until_refused", lambda *_: wait())
    scope = {"method": "GET", "headers": [(b"accept", accept.encode())], "scheme": "http", "path": "/"}
    asked = proxy.ProxyTarget(
        ServiceAddress("job", 8888), b"/", "http://job-8888.localhost", "http://localhost"
    )
    await proxy._forward(scope, wait, send, asked, service(tunnel), Credential("token", "x"))
    start, body = sent[0], sent[1]["body"]
    assert start["status"] == status
    assert (b"retry-after", b"2") in start["headers"]
    assert b"Port 8888 of the job does not answer" in body
    assert (b"<!doctype html>" in body) == (accept == "text/html")


class Deaf:
    """A pod's websocket that takes no message."""

    def __init__(self) -> None:
        self.closed: list[tuple[int, str]] = []

    async def send(self, _message: object) -> None:
        await asyncio.Event().wait()

    async def recv(self) -> None:
        await asyncio.Event().wait()

    async def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))


async def test_a_client_that_leaves_a_port_that_reads_nothing_is_noticed(monkeypatch):
    """Whichever way: as bytes of a forwarded port, or as messages of a websocket."""
    left, messages = asyncio.Event(), 0

    async def wait(*_unused: object) -> None:
        await asyncio.Event().wait()

    async def receive() -> Message:
        nonlocal messages
        messages += 1
        asyncio.get_running_loop().call_later(0.05, left.set)
        return {"type": "websocket.receive", "bytes": b"x" * 1_000_000}

    monkeypatch.setattr(forward, "until_refused", wait)
    near, far = socket.socketpair()
    near.setblocking(False)
    scope, sent = {LEFT: left, "subprotocols": []}, asyncio.Queue()
    async with asyncio.timeout(patience(30)):
        await forward._serve(scope, receive, sent.put, near, Credential("token", "x"), "job")
        pod = Deaf()
        left.clear()
        assert await sockets._join(pod, receive, wait, wait(), until_gone(scope)) is None
    assert pod.closed == [(sockets.GOING_AWAY, "")]
    near.close()
    far.close()


async def test_a_server_that_takes_nothing_of_a_request_is_no_answer(tunnel, monkeypatch):
    monkeypatch.setattr(upstream, "STALL_SECONDS", 0.05)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * 1_000_000, "more_body": True}

    async with exchange(service(tunnel)) as pod:
        headers = [(b"host", pod.address.encode()), (b"transfer-encoding", b"chunked")]
        with pytest.raises(NoAnswer, match="accepted no data of the request") as refusal:
            await pod.send("POST", b"/x", headers, receive)
    assert refusal.value.status == 504
    await asyncio.sleep(0)
    # What was not sent keeps nothing open.
    assert tunnel.near[0].fileno() == -1


async def test_an_engine_that_is_slow_holds_nobody_else_up(tunnel, monkeypatch):
    monkeypatch.setattr(admission, "CONNECT_SECONDS", 0.05)
    tunnel.hold.clear()
    with pytest.raises(
        NoAnswer
    ):  # the loop's clock goes on: the time is over although the engine still waits
        await service(tunnel).connect()
    tunnel.hold.set()
    monkeypatch.setattr(admission, "CONNECT_SECONDS", 5)
    stream = await service(tunnel).connect()
    stream.close()
    # The late one may come after the other.
    run = asyncio.get_running_loop().run_in_executor
    await run(None, lambda: wait_until(lambda: len(tunnel.far) == 2, what="the late connection"))
    for far in tunnel.far:
        assert await run(None, far.recv, 1) == b""  # it was closed, not lost


def test_a_tcp_stream_tells_where_it_leads():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as stream:
            assert public_address(stream, 8888) == f"127.0.0.1:{address[1]}"


@pytest.mark.django_db
def test_an_engine_without_a_way_to_ports_says_so(plant: Plant, monkeypatch):
    job = make_job(make_project(), ports=[{"port": 8888}])
    plant.settle()
    job.refresh_from_db()
    monkeypatch.setattr(admission, "admit", lambda *_: (None, job))
    with pytest.raises(NotRunning, match="Cluster memory does not support connections to its pods' ports"):
        find_service(Credential("token", "x"), str(job.pk), 8888)


@pytest.mark.django_db
def test_engines_of_detached_clusters_are_closed_in_this_process_too(plant: Plant, monkeypatch):
    make_job(make_project())
    plant.settle()
    kept: list[set[int]] = []

    def close_engines(keep: set[int]) -> None:
        kept.append(keep)

    monkeypatch.setattr(admission, "close_engines", close_engines)
    monkeypatch.setattr(admission, "_tidied_at", float("-inf"))
    pod = Pod.objects.select_related("node__cluster").get()
    assert [admission.engine_of(pod), admission.engine_of(pod)] == [plant.engine, plant.engine]
    assert kept == [{plant.cluster.pk}]
