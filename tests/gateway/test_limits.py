"""What one port of a job may take of the gateway, however many requests it gets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import cast

import pytest
from django.db import OperationalError
from websockets.asyncio.server import ServerConnection, serve

from controlplane.engines.base import Process
from controlplane.engines.memory import MemoryEngine
from controlplane.live.asgi import Message
from controlplane.live.identity import Credential
from jobs.gateway import admission, command, limits, program
from jobs.gateway.admission import NoAnswer, NotSignedIn, NotVisible, Service, until_refused
from jobs.gateway.limits import TooManyRequests, exchanging
from jobs.gateway.sockets import carry_websocket
from tests.waiting import patience

STUCK, WELL = 6666, 8888


class Ports(MemoryEngine):
    """An engine whose port STUCK never accepts, until `gate` is set."""

    def __init__(self) -> None:
        super().__init__({"nodes": {}})
        self.gate = threading.Event()
        self.waiting = 0

    def open_port(self, pod_name: str, port: int) -> socket.socket:
        if port == STUCK:
            self.waiting += 1
            assert self.gate.wait(patience(30))
            raise ConnectionRefusedError
        near, far = socket.socketpair()
        far.close()
        return near


@pytest.fixture
def ports() -> Iterator[Ports]:
    engine = Ports()
    yield engine
    engine.gate.set()


async def test_a_port_that_never_accepts_leaves_the_others_open(ports, monkeypatch):
    monkeypatch.setattr(admission, "CONNECT_SECONDS", 20)
    stuck = Service("job", STUCK, "pod-1-0", ports, 1)
    calls = [asyncio.create_task(stuck.connect()) for _ in range(200)]
    refused = [call for call in calls if await has_ended(call)]
    stream = await asyncio.wait_for(Service("other", WELL, "pod-2-0", ports, 2).connect(), patience(10))
    stream.close()
    assert ports.waiting == limits.CONNECTS_OF_PORT
    assert len(refused) == 200 - limits.CONNECTS_OF_PORT - limits.WAITING_OF_PORT
    assert {error.code for error in map(asyncio.Task.exception, refused)} == {"too_many_connects_to_port"}
    ports.gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} == {NoAnswer, TooManyRequests}


async def has_ended(task: asyncio.Task) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return task.done()


async def test_a_connect_whose_caller_has_left_still_holds_its_slot(ports, monkeypatch):
    monkeypatch.setattr(admission, "CONNECT_SECONDS", 0.05)
    stuck = Service("job", STUCK, "pod-1-0", ports, 1)
    for _ in range(3):
        results = await asyncio.gather(*(stuck.connect() for _ in range(8)), return_exceptions=True)
        assert {type(result) for result in results} == {NoAnswer}
    assert ports.waiting == limits.CONNECTS_OF_PORT


def test_open_requests_are_bounded_by_port_and_by_project(monkeypatch):
    monkeypatch.setattr(limits._exchanges_of_port, "most", 1)
    monkeypatch.setattr(limits._exchanges_of_project, "most", 2)
    with exchanging(project=1, port=1), exchanging(project=1, port=2):
        with pytest.raises(TooManyRequests) as of_port, exchanging(project=1, port=1):
            pass
        with pytest.raises(TooManyRequests) as of_project, exchanging(project=1, port=3):
            pass
        with exchanging(project=2, port=3):
            pass
    assert of_port.value.code == "too_many_requests_to_port"
    assert of_project.value.code == "too_many_requests_to_project"
    with exchanging(project=1, port=1):
        pass


async def test_connections_of_one_credential_share_a_look_at_the_database(monkeypatch):
    looks = []

    async def look(_client, _work, credential, job_id):
        looks.append(job_id)
        if len(looks) > 2:
            raise NotVisible("gone")

    monkeypatch.setattr(admission, "RECHECK_SECONDS", 0.01)
    monkeypatch.setattr(admission, "in_turn_of", look)
    await asyncio.gather(*(until_refused(Credential("token", "x"), "job") for _ in range(100)))
    assert len(looks) == 3


class Endless:
    """A command whose output is always there to be read."""

    def __init__(self, pieces: int) -> None:
        self.left = pieces
        self.near, self.far = socket.socketpair()
        self.far.send(b"x")

    def fileno(self) -> int:
        return self.near.fileno()

    def read(self) -> tuple[int, bytes]:
        self.left -= 1
        if not self.left:
            raise EOFError
        return 1, b"x"


async def test_a_command_that_prints_without_pause_leaves_turns_to_others():
    process, turns = Endless(100), 0

    async def send(_message: Message) -> None:
        """A client that takes everything at once."""

    showing = asyncio.create_task(program.show(cast(Process, process), command.read_output, send))
    while not showing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 90
    process.near.close()
    process.far.close()


async def test_a_client_that_left_before_its_websocket_opened_leaves_none_to_the_pod():
    closed = asyncio.Event()

    async def serve_pod(websocket: ServerConnection) -> None:
        await websocket.wait_closed()
        closed.set()

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(_message: Message) -> None:
        raise OSError("the client has left")

    async with serve(serve_pod, "127.0.0.1", 0) as pod:
        port = pod.sockets[0].getsockname()[1]
        service = Service("job", port, "pod-1-0", Reachable({"nodes": {}}), 1)
        rights = asyncio.sleep(60)
        with pytest.raises(OSError, match="has left"):
            await carry_websocket({"subprotocols": []}, receive, send, service, "/", [], rights)
        await asyncio.wait_for(closed.wait(), patience(10))


class Reachable(MemoryEngine):
    """An engine whose ports are those of this machine."""

    def open_port(self, pod_name: str, port: int) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port))


async def test_a_database_that_is_busy_ends_no_connection(monkeypatch):
    looks = []

    def look(*_unused) -> None:
        looks.append(1)
        raise NotSignedIn if len(looks) == 3 else OperationalError("database is locked")

    monkeypatch.setattr(admission, "RECHECK_SECONDS", 0)
    monkeypatch.setattr(admission, "admit", look)
    await until_refused(Credential("bearer", "busy"), "a-job")
    assert len(looks) == 3
