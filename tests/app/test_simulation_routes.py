"""Every request that asks the simulating process runs beside the WSGI thread."""

import pytest
from django.test import Client

from controlplane.simulation.client import SimulationFailed, Simulator
from controlplane.simulation.routes import asks_simulation
from tests.builders import make_job
from tests.cast import Cast

SUBMISSION = {"name": "hyper9", "kind": "train", "gpus": 1}
CALLS = (
    ("GET", "/jobs/{job}/outlook", None),
    ("GET", "/api/v1/jobs/{job}/explain", None),
    ("POST", "/api/v1/projects/team-a/jobs/plan", SUBMISSION),
    ("POST", "/api/v1/projects/team-a/what-if", {"gpu_quota": 6}),
    ("POST", "/api/v1/projects/team-a/what-if?last_week=true", {"gpu_quota": 6}),
    ("POST", "/new/job/plan", {"project": "team-a", "name": "hyper9", "kind": "train", "gpus": "1"}),
    ("POST", "/projects/team-a/what-if", {"gpu_quota_milli": "6", "priority": "0"}),
    ("POST", "/projects/team-a/what-if?last_week", {"gpu_quota_milli": "6", "priority": "0"}),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions to the simulating process, all of which fail."""
    questions: list[str] = []

    def ask(_simulator, question, *_arguments, budget_seconds):
        questions.append(question)
        raise SimulationFailed("It was only counted.")

    monkeypatch.setattr(Simulator, "ask", ask)
    return questions


@pytest.mark.django_db
@pytest.mark.parametrize(("method", "path", "body"), CALLS, ids=lambda value: str(value)[:40])
def test_a_request_that_asks_is_listed(cast: Cast, client: Client, asked, method, path, body):
    client.force_login(cast.root)
    path = path.format(job=make_job(cast.project, "hyper1", cast.ana).pk)
    is_rest = path.startswith("/api/")
    sent = {"content_type": "application/json"} if is_rest and body else {}
    answer = client.get(path) if method == "GET" else client.post(path, body, **sent)
    assert asked, answer.content
    assert asks_simulation(method, path.partition("?")[0])
    assert answer.status_code == (503 if is_rest and body else 200)


@pytest.mark.django_db
def test_pages_and_lists_of_queued_jobs_ask_nothing(cast: Cast, client: Client, asked):
    client.force_login(cast.root)
    job = make_job(cast.project, "hyper1", cast.ana)
    for path in (f"/jobs/{job.pk}", "/jobs", "/", "/api/v1/jobs", f"/api/v1/jobs/{job.pk}"):
        assert client.get(path).status_code == 200
        assert not asks_simulation("GET", path)
    assert asked == []
