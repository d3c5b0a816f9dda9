"""What a verb needs beside the role that tests/access requires: the page's token, and more for some fields."""

import pytest

from jobs.models import Job
from tests.access.rules import REST
from tests.app.api.client import Api, name_in
from tests.cast import Cast

pytestmark = pytest.mark.django_db
VERBS = [(route, verb) for route, verbs in REST.items() for verb in verbs]


def test_owners_change_their_own_fields_only(cast: Cast):
    assert Api(cast.ana).patch("projects/team-a", {"gpu_quota": 16}).status == 403


def test_a_session_without_the_csrf_token_changes_nothing(cast: Cast, job: Job):
    api = Api(None)
    api.client.handler.enforce_csrf_checks = True
    api.client.force_login(cast.root)
    tried = [pair for pair in VERBS if pair[1] != "GET" and pair[0] != "login"]
    answers = {(verb, route): api.send(verb, _filled(route, job), {}).status for route, verb in tried}
    assert len(answers) > 60
    assert {cell: status for cell, status in answers.items() if status != 403} == {}


def _filled(route: str, job: Job) -> str:
    return (
        route.replace("<str:job_id>", str(job.pk))
        .replace("<str:name>", name_in(route))
        .replace("<str:username>", "ben")
    )
