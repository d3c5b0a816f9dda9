"""Whatever is odd about a kubeconfig and whoever answers at its address: no part of its credentials is found again."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from django.apps import apps

from controlplane.actions.clusters import settle_check
from controlplane.clusters.credentials import engine_settings
from controlplane.engines.base import EngineUnreachable
from controlplane.engines.registry import check_cluster
from controlplane.loop.engine_pool import close_engines, engine_for
from controlplane.models import Cluster, Command
from tests.app.api.client import Api
from tests.cast import Cast
from tests.serving import serving

pytestmark = pytest.mark.django_db

AsPerson = Callable[[str], Api]
SECRET = "hush-hush"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
ODD_USERS = {
    "a newline in the token": {"token": f"{SECRET}\n{SECRET}"},
    "a control character": {"token": f"{SECRET}\x01"},
    "not ASCII": {"token": f"{SECRET}…"},
    "a list": {"token": [SECRET]},
    "a token that the server repeats": {"token": SECRET},
    "no certificate": {"client-certificate-data": SECRET, "client-key-data": SECRET},
    "no key": {"client-certificate-data": "aHVzaC1odXNo", "client-key-data": "aHVzaC1odXNo"},
    "a password": {"username": "me", "password": SECRET},
    "a program": {"exec": {"command": "x", "args": [SECRET], "env": [{"name": "KEY", "value": SECRET}]}},
    "a word": SECRET,
}


class Parrot(BaseHTTPRequestHandler):
    """Says no, and repeats what it was sent."""

    def do_GET(self) -> None:
        words = f"I do not know {self.headers.get('Authorization')}"
        body = json.dumps({"kind": "Status", "reason": "Unauthorized", "message": words}).encode()
        self.send_response_only(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  the name that http.server looks for

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def parrot() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Parrot) as server, serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.mark.parametrize("user", ODD_USERS.values(), ids=ODD_USERS)
def test_credentials_are_found_nowhere(
    user: object, api: AsPerson, cast: Cast, parrot: str, logged: io.StringIO
) -> None:
    kubeconfig = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": parrot}}],
        "users": [{"name": "c", "user": user}],
    }
    root = api("root")
    sent = root.post(
        "clusters", {"name": "odd", "engine": "kubernetes", "kubeconfig": json.dumps(kubeconfig)}
    )
    cluster, order = Cluster.objects.get(name="odd"), Command.objects.get(kind=Command.CHECK_CLUSTER)
    found = check_cluster(cluster.engine, engine_settings(cluster))
    settle_check(order, [vars_of(check) for check in found], NOW)
    told = []
    try:
        engine_for(cluster).nodes()
    except EngineUnreachable as error:
        told.append(str(error))
    finally:
        close_engines()
    rows = [str(list(model._base_manager.values())) for model in apps.get_models()]
    answers = [sent, *(root.get(path) for path in ("clusters/odd", "events", "audit", "clusters"))]
    assert "failed" in str(answers[1].body)
    assert not [text for text in (*told, *rows, *map(str, answers), logged.getvalue()) if SECRET in text]


def vars_of(check: object) -> dict[str, str]:
    return {name: getattr(check, name) for name in ("name", "outcome", "message", "without_it")}
