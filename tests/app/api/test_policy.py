"""Who may do what: every route and verb, for everybody of the cast. A route or verb that the table lacks fails.

Answers by role, in the order of ROLES: anonymous, chi (a stranger), vera (viewer), ben (member), ana (owner), root
(admin) and a read-only token of root's. What is allowed may answer any success, or a refusal of the body (400, 409).
"""

from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from controlplane.models import Token, User
from jobs.models import Job
from tests.app.api.client import Api, name_in
from tests.cast import Cast

pytestmark = pytest.mark.django_db

ROLES = ("anonymous", "chi", "vera", "ben", "ana", "root", "read-only")
OK = 200  # any answer that is not a refusal of the person

EVERYBODY = (401, OK, OK, OK, OK, OK, OK)
EVERYBODY_WRITES = (401, OK, OK, OK, OK, OK, 403)
ADMIN_READS = (401, 403, 403, 403, 403, OK, OK)
ADMIN_WRITES = (401, 403, 403, 403, 403, OK, 403)
VIEWERS_READ = (401, 404, OK, OK, OK, OK, OK)
MEMBERS_WRITE = (401, 404, 403, OK, OK, OK, 403)
OWNERS_WRITE = (401, 404, 403, 403, OK, OK, 403)
ADMIN_WRITES_INSIDE = (401, 404, 403, 403, 403, OK, 403)
OWN_TOKEN = (401, 404, 404, OK, 404, OK, OK)  # ben's token
OWN_TOKEN_WRITE = (401, 404, 404, OK, 404, OK, 403)
OWN_USER = (401, 403, 403, OK, 403, OK, OK)  # ben's account
OWN_USER_WRITE = (401, 403, 403, OK, 403, OK, 403)
ANYBODY = (OK,) * 7

TABLE: dict[str, dict[str, tuple[int, ...]]] = {
    "login": {"POST": ANYBODY},
    "whoami": {"GET": EVERYBODY},
    "tokens": {"GET": EVERYBODY, "POST": EVERYBODY_WRITES},
    "tokens/<str:token_id>": {"GET": OWN_TOKEN, "DELETE": OWN_TOKEN_WRITE},
    "users": {"GET": ADMIN_READS, "POST": ADMIN_WRITES},
    "users/<str:username>": {"GET": OWN_USER, "PATCH": OWN_USER_WRITE},
    "clusters": {"GET": EVERYBODY, "POST": ADMIN_WRITES},
    "clusters/<str:name>": {"GET": EVERYBODY, "PATCH": ADMIN_WRITES, "DELETE": ADMIN_WRITES},
    "clusters/<str:name>/check": {"POST": ADMIN_WRITES},
    "node-pools": {"GET": EVERYBODY, "POST": ADMIN_WRITES},
    "nodes": {"GET": EVERYBODY},
    "nodes/<str:name>": {"GET": EVERYBODY, "PATCH": ADMIN_WRITES},
    "nodes/<str:name>/cordon": {"POST": ADMIN_WRITES},
    "nodes/<str:name>/uncordon": {"POST": ADMIN_WRITES},
    "nodes/<str:name>/drain": {"POST": ADMIN_WRITES},
    "nodes/<str:name>/confirm-dead": {"POST": ADMIN_WRITES},
    "departments": {"GET": EVERYBODY, "POST": ADMIN_WRITES},
    "departments/<str:name>": {"GET": EVERYBODY, "PATCH": ADMIN_WRITES, "DELETE": ADMIN_WRITES},
    "projects": {"GET": EVERYBODY, "POST": ADMIN_WRITES},
    "projects/<str:name>": {"GET": VIEWERS_READ, "PATCH": OWNERS_WRITE, "DELETE": ADMIN_WRITES_INSIDE},
    "projects/<str:name>/members": {"GET": VIEWERS_READ, "POST": OWNERS_WRITE},
    "projects/<str:name>/members/<str:username>": {
        "GET": VIEWERS_READ,
        "PATCH": OWNERS_WRITE,
        "DELETE": OWNERS_WRITE,
    },
    "projects/<str:name>/jobs": {"GET": VIEWERS_READ, "POST": MEMBERS_WRITE},
    "projects/<str:name>/jobs/batch": {"POST": MEMBERS_WRITE},
    "images": {"GET": EVERYBODY},
    "jobs": {"GET": EVERYBODY},
    "jobs/<str:job_id>": {"GET": VIEWERS_READ, "PATCH": MEMBERS_WRITE, "DELETE": MEMBERS_WRITE},
    "jobs/<str:job_id>/stop": {"POST": MEMBERS_WRITE},
    "jobs/<str:job_id>/suspend": {"POST": MEMBERS_WRITE},
    "jobs/<str:job_id>/resume": {"POST": MEMBERS_WRITE},
    "jobs/<str:job_id>/clone": {"POST": MEMBERS_WRITE},
    "jobs/<str:job_id>/scale": {"POST": MEMBERS_WRITE},
    "jobs/<str:job_id>/scale-operations": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/pods": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/events": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/logs": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/metrics": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/explain": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/spec": {"GET": VIEWERS_READ},
    "events": {"GET": EVERYBODY},
    "audit": {"GET": ADMIN_READS},
    "telemetry/overview": {"GET": EVERYBODY},
    "telemetry/series": {"GET": EVERYBODY},
    "openapi.json": {"GET": EVERYBODY},
}
QUERIES = {"telemetry/series": "?metric=gpus_allocated"}
NOWHERE = r"^(?P<rest>.*)$"


def routes() -> Iterator[tuple[str, Any]]:
    """Every pattern below /api/v1/, with its view class, as the resolver has it."""
    resolver = next(item for item in get_resolver().url_patterns if str(item.pattern) == "api/v1/")
    yield from _walk(resolver, "")


def _walk(resolver: URLResolver | URLPattern, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(resolver, URLPattern):
        yield prefix, resolver.callback.view_class
        return
    for item in resolver.url_patterns:
        yield from _walk(item, prefix + str(item.pattern))


VERBS = [(route, verb) for route, verbs in TABLE.items() for verb in verbs]


def test_every_route_and_verb_has_a_line_in_the_table():
    found = {
        route: {verb.upper() for verb in ("get", "post", "put", "patch", "delete") if hasattr(view, verb)}
        for route, view in routes()
        if route != NOWHERE
    }
    assert found == {route: set(verbs) for route, verbs in TABLE.items()}


@pytest.mark.parametrize(("route", "verb"), VERBS)
def test_each_role_gets_what_the_table_says(route: str, verb: str, cast: Cast, job: Job):
    expected, got = TABLE[route][verb], []
    ben = Token.objects.filter(user=cast.ben).first() or _token_of(cast.ben)
    path = route.replace("<str:token_id>", str(ben.pk)).replace("<str:job_id>", str(job.pk))
    path = path.replace("<str:username>", "ben").replace("<str:name>", name_in(route))
    for role in ROLES:
        reply = _client(role, cast).send(
            verb, f"{path}?dry_run=true" if verb != "GET" and route != "login" else path
        )
        refused = reply.status in (401, 403, 404, 405) and reply.code != "wrong_credentials"
        got.append(reply.status if refused or reply.status >= 500 else OK)
    if verb == "PATCH" and route == "projects/<str:name>":
        assert (
            Api(cast.ana).patch(f"{path}", {"gpu_quota": 16}).status == 403
        )  # owners change their own fields only
    # a read-only token may not write, whatever it is; the order of those refusals is not promised
    assert tuple(got) == expected, dict(zip(ROLES, got, strict=True))


@pytest.mark.parametrize(
    ("route", "verb"), [pair for pair in VERBS if pair[1] != "GET" and pair[0] != "login"]
)
def test_a_session_without_the_csrf_token_changes_nothing(route: str, verb: str, cast: Cast, job: Job):
    api = Api(None)
    api.client.handler.enforce_csrf_checks = True
    api.client.force_login(cast.root)
    path = (
        route.replace("<str:job_id>", str(job.pk))
        .replace("<str:name>", name_in(route))
        .replace("<str:username>", "ben")
    )
    assert api.send(verb, path, {}).status == 403


def _client(role: str, cast: Cast) -> Api:
    if role == "anonymous":
        return Api(None)
    if role == "read-only":
        return Api(cast.root, is_read_only=True)
    return Api(getattr(cast, role))


def _token_of(user: User) -> Token:
    Api(user)
    return Token.objects.get(user=user)
