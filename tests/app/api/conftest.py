"""Fixtures: REST clients for the cast, and a job of ben's."""

from collections.abc import Callable

import pytest

from jobs.models import Job
from tests.app.api.client import Api
from tests.builders import make_job
from tests.cast import Cast


@pytest.fixture
def api(cast: Cast) -> Callable[[str], Api]:
    """Fixture: a function that returns the client of a person by name, such as `api("ben")`; "" for one without a
    credential."""
    return lambda name: Api(getattr(cast, name) if name else None)


@pytest.fixture
def job(cast: Cast) -> Job:
    """Fixture: a queued job of ben's in team-a."""
    return make_job(cast.project, "hyper1", cast.ben)
