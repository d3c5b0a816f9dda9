"""A web process that stops while people listen."""

import logging
import time

from controlplane.actions import accounts
from tests.builders import make_job
from tests.live.server import Events, running
from tests.waiting import patience


def test_stopping_with_open_streams_is_quick_and_quiet(people, caplog):
    token = accounts.issue_token(people.ben, "test", actor=people.actor("ben"))[1]
    headers = {"Authorization": f"Bearer {token}"}
    job = make_job(people.project, "waits", people.ben)
    with running() as server:
        stream = Events(server, "/api/v1/watch?topics=queue", headers)
        next(iter(stream))
        log = Events(server, f"/api/v1/jobs/{job.pk}/logs?follow=true", headers)
        with server.websocket(additional_headers=headers) as socket:
            socket.send('{"op": "ping"}')
            socket.recv(patience(5))
            began = time.monotonic()
            server.stop()
        assert time.monotonic() - began < patience(4)
    stream.close()
    log.close()
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert loud == [
        "Cancel 2 running task(s), timeout graceful shutdown exceeded"
    ]  # uvicorn's own word for it
