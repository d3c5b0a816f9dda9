"""Fixtures: the live feed's hub on an event loop of its own, users and a web server."""

from collections.abc import Iterator

import pytest

from controlplane.loop.wake import listen, stop_listening
from tests.builders import make_counters
from tests.cast import Cast, make_cast
from tests.live.harness import LiveHub
from tests.live.server import Server, running


@pytest.fixture
def live_db(transactional_db: None) -> Iterator[None]:
    """Fixture: a database whose commits other threads see. Wake-ups arrive in this process, without Redis."""
    make_counters()

    def bell() -> None:
        """Do nothing: no loop runs."""

    listen(bell)
    yield
    stop_listening(bell)


@pytest.fixture
def people(live_db: None) -> Cast:
    """Fixture: the users of tests/cast.py, committed."""
    return make_cast()


@pytest.fixture
def live(live_db: None) -> Iterator[LiveHub]:
    """Fixture: a running hub with short intervals."""
    with LiveHub() as hub:
        yield hub


@pytest.fixture
def server(live_db: None) -> Iterator[Server]:
    """Fixture: the web process's application on a free port."""
    with running() as server:
        yield server
