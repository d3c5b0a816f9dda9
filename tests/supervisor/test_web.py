"""The idle web process wakes up for the signal that ends it, and its answers have the present date all the same."""

import asyncio
import itertools
import signal
from types import SimpleNamespace

import pytest
import uvicorn

from controlplane.supervisor import web
from tests.waiting import patience


@pytest.fixture
def server() -> web.Server:
    config = uvicorn.Config("controlplane.asgi:application")
    config.encoded_headers = [(b"server", b"trainyard")]
    return web.Server(config)


def test_a_signal_ends_the_wait_for_the_next_tick(server: web.Server) -> None:
    async def run() -> None:
        running = asyncio.create_task(server.main_loop())
        while len(server.server_state.default_headers) < 2:  # noqa: ASYNC110  the first tick has no event
            await asyncio.sleep(0)
        server.handle_exit(signal.SIGTERM, None)
        await asyncio.wait_for(running, patience(20))

    asyncio.run(run())
    assert [name for name, _ in server.server_state.default_headers] == [b"date", b"server"]


def test_a_signal_before_the_first_tick_ends_it(server: web.Server) -> None:
    server.handle_exit(signal.SIGTERM, None)
    asyncio.run(asyncio.wait_for(server.main_loop(), patience(20)))


def test_the_date_is_that_of_the_answer(server: web.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.chain([0.2, 0.9, 1.0], itertools.repeat(86_400.0))
    monkeypatch.setattr(web, "time", SimpleNamespace(time=lambda: 1_000_000_000 + next(clock)))
    state = server.server_state
    state.default_headers = [(b"date", b"of a tick"), (b"server", b"trainyard")]
    dates = [dict(state.default_headers)[b"date"] for _ in range(4)]
    assert dates == [
        b"Sun, 09 Sep 2001 01:46:40 GMT",
        b"Sun, 09 Sep 2001 01:46:40 GMT",
        b"Sun, 09 Sep 2001 01:46:41 GMT",
        b"Mon, 10 Sep 2001 01:46:40 GMT",
    ]
    assert state.default_headers[1:] == [(b"server", b"trainyard")]
