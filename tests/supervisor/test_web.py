"""The web process wakes up once a second when idle, and for the signal that ends it at once."""

import asyncio
import signal

import pytest
import uvicorn

from controlplane.supervisor import web
from tests.waiting import patience


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> web.Server:
    monkeypatch.setattr(web, "TICK_SECONDS", 1000.0)
    config = uvicorn.Config("controlplane.asgi:application")
    config.encoded_headers = []
    return web.Server(config)


def test_a_signal_ends_the_wait_for_the_next_tick(server: web.Server) -> None:
    async def run() -> None:
        running = asyncio.create_task(server.main_loop())
        while not server.server_state.default_headers:  # noqa: ASYNC110  the first tick has no event
            await asyncio.sleep(0)
        server.handle_exit(signal.SIGTERM, None)
        await asyncio.wait_for(running, patience(20))

    asyncio.run(run())
    assert [name for name, _ in server.server_state.default_headers] == [b"date"]


def test_a_signal_before_the_first_tick_ends_it(server: web.Server) -> None:
    server.handle_exit(signal.SIGTERM, None)
    asyncio.run(asyncio.wait_for(server.main_loop(), patience(20)))
