"""Fixtures: the cast with a running, a queued and a finished job of team-a, and a client without a browser."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from django.test import Client

from controlplane.models import User
from jobs.models import Job
from tests.builders import make_job
from tests.cast import Cast, make_cast
from tests.loop.plant import Plant

Visit = Callable[[str], Client]


@dataclass
class Yard:
    """A plant with the cast, and three jobs of ana's in team-a."""

    plant: Plant
    cast: Cast
    running: Job
    queued: Job
    finished: Job


@pytest.fixture
def yard(db: None) -> Iterator[Yard]:
    yard = make_yard()
    yield yard
    yard.plant.close()


def make_yard() -> Yard:
    plant, cast = Plant(), make_cast()
    finished = make_job(cast.project, "finished", cast.ana, gpus=0)
    running = make_job(cast.project, "running", cast.ana, gpus=2)
    queued = make_job(cast.project, "queued", cast.ana, gpus=8, workers=2)
    Job.objects.filter(pk=finished.pk).update(state="stopped")
    plant.settle()
    for job in (finished, running, queued):
        job.refresh_from_db()
    assert (running.state, queued.state, finished.state) == ("running", "queued", "stopped")
    return Yard(plant, cast, running, queued, finished)


@pytest.fixture
def visit() -> Callable[[User | None], Client]:
    """Fixture: a function that returns a Django client signed in as a user (None: not signed in)."""

    def as_user(user: User | None) -> Client:
        client = Client()
        if user is not None:
            client.force_login(user)
        return client

    return as_user
