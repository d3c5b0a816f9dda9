"""The gateway's look-ups in the database: one at a time for equal questions, and in turns of the users who ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from controlplane.engines.memory import MemoryEngine
from controlplane.http.fair_queue import Clients, FairQueue
from controlplane.live.identity import TOKEN, Credential
from jobs.gateway import admission, turns
from jobs.gateway.admission import NotVisible, Service, admit_service
from jobs.gateway.limits import TooManyRequests
from tests.waiting import patience

EVE, OLGA = Credential(TOKEN, "eve's"), Credential(TOKEN, "olga's")
SERVICE = Service("job", 8888, "pod-1-0", MemoryEngine({"nodes": {}}), 1)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users who were answered before, and nothing remembered of services."""
    clients = Clients()
    for number, credential in enumerate((EVE, OLGA)):
        clients.remember(credential.secret.encode(), str(number))
    monkeypatch.setattr(turns, "clients", clients)
    queue = FairQueue(at_once=2, most_of_client=turns.MOST_OF_CLIENT, most=turns.MOST)
    monkeypatch.setattr(turns, "_queue", queue)
    monkeypatch.setattr(admission, "_remembered", {})


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds the gateway's thread until it is set."""
    event = threading.Event()
    yield event
    event.set()


async def test_equal_requests_share_one_look_up(monkeypatch):
    looks = []

    def look(*asked: object) -> Service:
        looks.append(asked)
        return SERVICE

    monkeypatch.setattr(admission, "find_service", look)
    found = await asyncio.gather(*(admit_service(EVE, "job", 8888) for _ in range(100)))
    assert looks == [(EVE, "job", 8888)]
    assert {id(service) for service in found} == {id(SERVICE)}


async def test_a_refusal_reaches_all_that_share_it_and_is_not_kept(monkeypatch):
    looks = []

    def refuse(*asked: object) -> Service:
        looks.append(asked)
        raise NotVisible("gone")

    monkeypatch.setattr(admission, "find_service", refuse)
    for _ in range(2):
        results = await asyncio.gather(
            *(admit_service(EVE, "job", 8888) for _ in range(5)), return_exceptions=True
        )
        assert {type(result) for result in results} == {NotVisible}
    assert len(looks) == 2


async def test_a_caller_that_leaves_ends_no_look_up_of_others(monkeypatch, gate):
    def look(*_asked: object) -> Service:
        assert gate.wait(patience(30))
        return SERVICE

    monkeypatch.setattr(admission, "find_service", look)
    leaving, staying = (asyncio.create_task(admit_service(EVE, "job", 8888)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    gate.set()
    assert await asyncio.wait_for(staying, patience(10)) is SERVICE


async def test_a_user_waits_behind_one_look_up_of_another_not_behind_all(gate):
    order: list[str] = []

    def look(name: str) -> None:
        assert gate.wait(patience(30))
        order.append(name)

    flood = [asyncio.create_task(turns.in_thread(EVE, "", look, "eve")) for _ in range(50)]
    await asyncio.sleep(0)
    other = asyncio.create_task(turns.in_thread(OLGA, "", look, "olga"))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait_for(asyncio.gather(other, *flood), patience(10))
    assert order.index("olga") <= 3


async def test_more_look_ups_of_a_user_than_may_wait_are_refused(gate):
    def look() -> None:
        assert gate.wait(patience(30))

    flood = [asyncio.create_task(turns.in_thread(EVE, "", look)) for _ in range(turns.MOST_OF_CLIENT + 3)]
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*flood, return_exceptions=True)
    refused = [result for result in results if isinstance(result, TooManyRequests)]
    assert [error.code for error in refused] == ["too_many_requests"]


async def test_rights_are_looked_up_again_however_many_requests_of_the_user_wait(monkeypatch, gate):
    def look() -> None:
        assert gate.wait(patience(30))

    def refuse(*_asked: object) -> None:
        raise NotVisible("gone")

    monkeypatch.setattr(admission, "RECHECK_SECONDS", 0.01)
    monkeypatch.setattr(admission, "admit", refuse)
    flood = [asyncio.create_task(turns.in_thread(EVE, "", look)) for _ in range(turns.MOST_OF_CLIENT + 2)]
    await asyncio.sleep(0)
    rights = asyncio.create_task(admission._recheck(EVE, "job"))
    await asyncio.sleep(0.05)
    gate.set()
    assert not await asyncio.wait_for(rights, patience(10))
    await asyncio.gather(*flood)
