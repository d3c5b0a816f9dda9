"""While simulations take long, every other request is answered."""

import json
import threading
from collections.abc import Iterator

import pytest

from controlplane import asgi
from controlplane.access import SYSTEM
from controlplane.actions.accounts import create_user
from controlplane.models import Membership, Role
from controlplane.simulation.client import SimulationFailed, Simulator
from tests.builders import make_job
from tests.cast import PASSWORD, Cast
from tests.live.server import Server
from tests.live.test_server import bearer, cookie
from tests.waiting import wait_until

USERS = 20


class Slow:
    """Simulations that end when they are let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_end = threading.Event()

    def ask(self, *_arguments, budget_seconds):
        self.asked += 1
        self.may_end.wait(60)
        raise SimulationFailed("It was let go.")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow()
    monkeypatch.setattr(Simulator, "ask", lambda _, *given, **more: made.ask(*given, **more))
    yield made
    made.may_end.set()


def test_twenty_users_on_queued_jobs_keep_no_page_of_another_user_waiting(
    people: Cast, slow: Slow, server: Server
):
    jobs = [make_job(people.project, f"queued-{number}", people.ana) for number in range(USERS)]
    answers: list[int] = []

    def add_reader(number: int) -> None:
        user = create_user(f"user{number}", PASSWORD, actor=SYSTEM)
        Membership.objects.create(project=people.project, user=user, role=Role.VIEWER)
        headers = cookie(user)[0]
        readers.append(threading.Thread(target=read, args=(f"/jobs/{jobs[number].pk}/outlook", headers)))

    def read(path: str, headers: dict[str, str]) -> None:
        # as a browser that has the page already: the server has seen whose credential it is
        assert server.request("GET", "/api/v1/whoami", headers=headers).status == 200
        answers.append(server.request("GET", path, headers=headers).status)

    readers: list[threading.Thread] = []
    for number in range(USERS):
        add_reader(number)
    for reader in readers:
        reader.start()
    wait_until(lambda: slow.asked == 1, what="one simulation of the cluster at once")
    wait_until(
        lambda: asgi.simulation_hop._queue._waiting == USERS - 3, what="all other readers in the queue"
    )
    mine = bearer(people, "ben")
    for path in ("/api/v1/whoami", "/api/v1/jobs", f"/api/v1/jobs/{jobs[0].pk}"):
        answer = server.request("GET", path, headers=mine)
        assert answer.status == 200
        assert json.loads(answer.read())
    page = server.request("GET", f"/jobs/{jobs[0].pk}", headers=cookie(people.ben)[0])
    assert page.status == 200
    assert b"being estimated" in page.read()
    assert answers == []
    slow.may_end.set()
    for reader in readers:
        reader.join(60)
    assert answers == [200] * USERS
