"""Whose request is next: one of each client in turn."""

import asyncio
import threading

import pytest
from django.conf import settings

from controlplane.http.fair_queue import Clients, FairQueue, QueueFull
from controlplane.http.request_user import USER_KEY
from controlplane.http.wsgi_bridge import WsgiBridge, credential_in
from tests.live.test_wsgi_bridge import Exchange, scope_of
from tests.waiting import patience

SESSION = settings.SESSION_COOKIE_NAME.encode()


async def test_a_client_waits_behind_its_own_requests_only():
    queue, served = FairQueue(at_once=1, most_of_client=100, most=1000), []

    async def request(client: str) -> None:
        async with queue.turn(client):
            served.append(client)
            await asyncio.sleep(0)

    greedy = [asyncio.create_task(request("greedy")) for _ in range(50)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(request(name)) for name in ("ana", "ben")]
    await asyncio.gather(*greedy, *others)
    assert max(served.index("ana"), served.index("ben")) < 5
    assert served.count("greedy") == 50


async def test_waiting_is_bounded_for_a_client_and_for_all():
    queue = FairQueue(at_once=1, most_of_client=2, most=3)

    async def request(client: str) -> None:
        async with queue.turn(client):
            await asyncio.sleep(0.01)

    results = await asyncio.gather(
        *(request(client) for client in ("a", "a", "a", "a", "b", "c")), return_exceptions=True
    )
    assert [isinstance(result, QueueFull) for result in results] == [False, False, False, True, False, True]
    assert [result.is_of_all for result in results if isinstance(result, QueueFull)] == [False, True]
    await request("a")  # all turns were given back


async def test_one_that_gives_up_leaves_its_turn_to_others():
    queue, held = FairQueue(at_once=1, most_of_client=9, most=9), asyncio.Event()

    async def request() -> None:
        async with queue.turn("a"):
            await held.wait()

    first, second, third = (asyncio.create_task(request()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    held.set()
    await asyncio.wait_for(asyncio.gather(first, third), patience(10))
    await asyncio.wait_for(request(), patience(10))


async def test_a_turn_given_while_it_is_cancelled_is_passed_on():
    queue, held = FairQueue(at_once=1, most_of_client=9, most=9), asyncio.Event()

    async def request() -> None:
        async with queue.turn("a"):
            await held.wait()

    first, second = (asyncio.create_task(request()) for _ in range(2))
    await asyncio.sleep(0)
    held.set()
    await first  # gives its turn to the second, which has not run since
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await asyncio.wait_for(request(), patience(10))


def test_a_client_is_a_user_once_a_credential_is_known():
    clients = Clients()
    assert clients.client_of(b"Bearer x", "10.0.0.1") == "address 10.0.0.1"
    clients.remember(b"Bearer x", "7")
    clients.remember(b"session", "7")
    assert {clients.client_of(one, "10.0.0.1") for one in (b"Bearer x", b"session")} == {"user 7"}
    clients.forget(b"Bearer x")
    assert clients.client_of(b"Bearer x", "10.0.0.1") == "address 10.0.0.1"


@pytest.mark.parametrize(
    ("headers", "credential"),
    [
        ([(b"authorization", b"Bearer x"), (b"cookie", b"%s=y" % SESSION)], b"Bearer x"),
        ([(b"cookie", b"a=1; %s=y; b=2" % SESSION)], b"y"),
        ([(b"cookie", b"not%s=y" % SESSION)], b""),
        ([], b""),
    ],
)
def test_what_a_request_authenticates_with(headers, credential):
    assert credential_in(headers) == credential


async def test_a_flood_of_one_user_delays_another_by_one_request():
    served, gate = [], threading.Event()

    def application(environ, start_response):
        gate.wait(patience(10))
        served.append(environ["HTTP_AUTHORIZATION"])
        environ[USER_KEY] = environ["HTTP_AUTHORIZATION"]
        start_response("204 No Content", [])
        return []

    hop = WsgiBridge(application, most_of_client=20)

    async def request(name: bytes) -> int:
        exchange = Exchange()
        await hop(scope_of(headers=[(b"authorization", name)]), exchange.receive, exchange.send)
        return exchange.status

    gate.set()
    await asyncio.gather(request(b"eve"), request(b"olga"))
    served.clear()
    gate.clear()
    flood = [asyncio.create_task(request(b"eve")) for _ in range(30)]
    await asyncio.sleep(0.01)
    other = asyncio.create_task(request(b"olga"))
    await asyncio.sleep(0.01)
    gate.set()
    statuses = await asyncio.gather(*flood)
    assert await other == 204
    assert served.index("olga") <= 3
    assert statuses.count(429) == 30 - 22
    hop.shutdown()


@pytest.mark.django_db
def test_the_user_of_a_request_is_noted(client, django_user_model):
    user = django_user_model.objects.create_user("ana", "correct horse battery")
    assert USER_KEY not in client.get("/login").wsgi_request.META
    client.force_login(user)
    assert client.get("/jobs").wsgi_request.META[USER_KEY] == str(user.pk)
    assert client.get("/api/v1/whoami").wsgi_request.META[USER_KEY] == str(user.pk)
