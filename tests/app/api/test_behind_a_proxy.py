"""What depends on the instance's address and key: links, hosts, kept answers."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import DisallowedHost
from django.test import RequestFactory

from controlplane import settings as product
from controlplane.models import IdempotencyRecord
from jobs.models import Job
from tests.app.api.client import Api
from tests.builders import make_job
from tests.cast import Cast

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
SPEC = {"name": "hyper2", "kind": "train", "gpus": 1, "command": ["sleep", "1"]}


@pytest.mark.parametrize(
    ("stated", "start"),
    [
        ("https://yard.example.org", "https://yard.example.org/api/v1/jobs?"),
        ("", "http://testserver/api/v1/jobs?"),
    ],
)
def test_links_are_built_from_the_stated_address(
    api: AsPerson, cast: Cast, settings: Any, stated: str, start: str
):
    settings.STATED_URL = stated
    for number in range(3):
        make_job(cast.project, f"job-{number}", cast.ben)
    first = api("ben").get("jobs?limit=2").body
    assert first["next"].startswith(start)
    second = api("ben").get(first["next"].removeprefix(start.partition("/api")[0])).body
    assert second["previous"].startswith(start)


def test_no_test_host_is_allowed_in_the_product(settings: Any):
    settings.ALLOWED_HOSTS = product.ALLOWED_HOSTS
    with pytest.raises(DisallowedHost):
        RequestFactory().get("/", headers={"Host": "testserver"}).get_host()


def test_a_replay_after_a_change_of_the_key_is_refused_by_name_and_does_nothing(
    api: AsPerson, cast: Cast, settings: Any
):
    ben, old = api("ben"), settings.SECRET_KEY
    first = ben.post("projects/team-a/jobs", SPEC, idempotency_key="once")
    settings.SECRET_KEY = "another key " * 5
    refused = ben.post("projects/team-a/jobs", SPEC, idempotency_key="once")
    assert (refused.status, refused.code) == (409, "answer_unreadable")
    other = ben.post("projects/team-a/jobs", SPEC | {"gpus": 2}, idempotency_key="once")
    assert (other.status, other.code) == (422, "idempotency_key_reused")
    assert Job.objects.count() == 1
    settings.SECRET_KEY_FALLBACKS = [old]
    again = ben.post("projects/team-a/jobs", SPEC, idempotency_key="once")
    assert (again.status, again.body) == (201, first.body)


@pytest.mark.parametrize("body", [b"", b"\0" * 15, b"\xff" * 200])
def test_a_row_of_an_earlier_version_is_refused_by_name(api: AsPerson, cast: Cast, body: bytes):
    ben = api("ben")
    ben.post("projects/team-a/jobs", SPEC, idempotency_key="once")
    IdempotencyRecord.objects.update(body=body)
    assert ben.post("projects/team-a/jobs", SPEC, idempotency_key="once").code == "answer_unreadable"
