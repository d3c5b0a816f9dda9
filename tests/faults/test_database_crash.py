"""PostgreSQL that loses a process recovers, and counts on from the last transaction in its log."""

import os
import signal
from typing import Any

import psycopg
import pytest

from jobs.change_list import SERVER
from tests.servers import postgres, postgres_home
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    postgres_home() is None, reason="There is no PostgreSQL server on this machine."
)


def test_after_a_recovery_the_server_counts_as_another_one():
    with postgres() as url:
        with psycopg.connect(url, autocommit=True) as session:
            before = server_of(session)
            assert before == server_of(session)
            os.kill(session.info.backend_pid, signal.SIGKILL)
        after = wait_until(lambda: server_at(url), 30, "the recovery")
    assert after != before


def server_at(url: str) -> str | None:
    """Return what identifies the server, also to a role without rights; None while it does not answer."""
    try:
        with psycopg.connect(url, autocommit=True) as session:
            session.execute("DROP ROLE IF EXISTS plain")
            session.execute("CREATE ROLE plain")
            session.execute("SET ROLE plain")
            return server_of(session)
    except psycopg.OperationalError:
        return None


def server_of(session: psycopg.Connection[Any]) -> str:
    [[server]] = session.execute(f"SELECT {SERVER}").fetchall()
    return str(server)
