"""404 has one text whether a thing exists or not: the bodies differ in what the client sent, and in nothing else."""

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from controlplane.models import User
from jobs.models import Job
from tests.app.api.client import Api
from tests.builders import make_job
from tests.cast import Cast

pytestmark = pytest.mark.django_db
ABSENT, ABSENT_PROJECT, ABSENT_USER = str(uuid.uuid4()), "team-z", "ann"
SPEC = {"name": "j", "kind": "train", "command": ["true"]}
JOB_PARTS = ("", "/explain", "/events", "/pods", "/logs", "/metrics", "/spec", "/scale-operations")
JOB_VERBS = ("stop", "suspend", "resume", "clone", "scale")
# what varies from one answer to the next of the same request: the time of rendering, and the form's token
_OF_THE_MOMENT = re.compile(r'(data-server-now|data-now|csrfmiddlewaretoken"? value|content)="[^"]*"')


@pytest.fixture
def hidden(cast: Cast) -> Job:
    return make_job(cast.project, "hidden", cast.ben)


def requests(job: str, project: str, user: str) -> list[tuple[str, str, Any]]:
    """Every way to name a job, project or user to the API."""
    return [
        *(("GET", f"jobs/{job}{part}", None) for part in JOB_PARTS),
        *(("POST", f"jobs/{job}/{verb}", {"workers": 2} if verb == "scale" else None) for verb in JOB_VERBS),
        ("PATCH", f"jobs/{job}", {"priority": 3}),
        ("DELETE", f"jobs/{job}", None),
        ("GET", f"projects/{project}", None),
        ("PATCH", f"projects/{project}", {"description": "x"}),
        ("DELETE", f"projects/{project}", None),
        ("GET", f"projects/{project}/jobs", None),
        ("POST", f"projects/{project}/jobs", SPEC),
        ("POST", f"projects/{project}/jobs/batch", {"jobs": [SPEC]}),
        ("POST", f"projects/{project}/jobs/plan", SPEC),
        ("GET", f"projects/{project}/members", None),
        ("POST", f"projects/{project}/members", {"user": "chi", "role": "owner"}),
        ("GET", f"projects/{project}/members/{user}", None),
        ("PATCH", f"projects/{project}/members/{user}", {"role": "viewer"}),
        ("DELETE", f"projects/{project}/members/{user}", None),
        ("GET", f"users/{user}", None),
        ("PATCH", f"users/{user}", {"is_active": False}),
    ]


def test_rest_answers_alike(cast: Cast, hidden: Job):
    api = Api(cast.chi)
    names = [(str(hidden.pk), "team-a", "ben"), (ABSENT, ABSENT_PROJECT, ABSENT_USER)]
    for there, absent in zip(*(requests(*one) for one in names), strict=True):
        answers = [api.send(*there), api.send(*absent)]
        assert [answer.status for answer in answers] == [404, 404], there
        texts = [_blank(str(answer.body), one) for answer, one in zip(answers, names, strict=True)]
        assert texts[0] == texts[1], there


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/{job}", "/jobs/{job}/events", "/jobs/{job}/log.txt", "/new/job?clone={job}", "/projects/{project}",
        "/projects/{project}/edit", "/projects/{project}/delete", "/users/{user}",
    ],
)  # fmt: skip
def test_pages_answer_alike(cast: Cast, hidden: Job, path: str):
    names = [(str(hidden.pk), "team-a", "ben"), (ABSENT, ABSENT_PROJECT, ABSENT_USER)]
    texts = [
        _page(cast.chi, path.format(job=job, project=project, user=user)) for job, project, user in names
    ]
    assert _blank(texts[0], names[0]) == _blank(texts[1], names[1])


def _page(user: User, path: str) -> str:
    client = Client()
    client.force_login(user)
    answer = client.get(path)
    assert answer.status_code == 404, (path, answer.status_code)
    return answer.content.decode()


def _blank(text: str, names: tuple[str, ...]) -> str:
    for name in names:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "…", text)
    return _OF_THE_MOMENT.sub("…", text)


def test_the_wrong_shape_of_an_id_is_answered_alike(cast: Cast):
    api: Callable[[str], Any] = Api(cast.chi).get
    assert api("jobs/nothing").body == api(f"jobs/{ABSENT}").body
