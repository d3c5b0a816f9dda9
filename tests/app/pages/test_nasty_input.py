"""Every page at every address, with values that no database and no calendar takes: refused, never a fault of ours."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.handlers import wsgi
from django.http import QueryDict
from django.test import Client
from django.urls import URLPattern, URLResolver
from django.utils.regex_helper import normalize

from controlplane.access import SYSTEM
from controlplane.actions.accounts import issue_token
from controlplane.models import User
from dashboards.urls import urlpatterns
from datasets.actions.caches import cache_version, location_for
from tests.app.pages.conftest import Yard, make_yard
from tests.artifacts import make_artifact
from tests.cast import PASSWORD
from tests.datasets import make_dataset, make_version
from tests.volumes import make_snapshot, make_volume
from tests.worlds import lakes_in, standing

Visit = Callable[[User | None], Client]

# percent-encoded
NASTY = {
    "nul": "a%00b",
    "beyond every integer": "9" * 60,
    "beyond int()": "9" * 5000,
    "half a surrogate pair": "%ED%A0%80",
    "before the first day": "0001-01-01T00%3A00%2B14%3A00",
    "after the last day": "9999-12-31T23%3A59-14%3A00",
    "long": "%C3%A9" * 400,
}
ASKED = (
    "q", "state", "project", "kind", "user", "before", "after", "from", "to", "range", "span", "attempt", "rank",
    "cluster", "clone", "next",
)  # fmt: skip
DATES = ("before the first day", "after the last day")  # another text like "long" where no date is asked for
HIDING = ("to", "after", "clone")  # with these, other fields are not looked at
SENT = (
    "username", "password", "again", "email", "is_admin", "is_read_only", "name", "days", "user", "role", "project",
    "next", "kind", "image", "command", "working_dir", "node_pool", "gpus", "cpus", "gpu_memory_mib", "memory_mib",
    "workers", "priority", "retries", "max_runtime_seconds", "expected_runtime_seconds",
    "ttl_seconds_after_finished", "env", "labels", "ports", "cluster", "gpu_quota_milli",
    "over_quota_weight_milli", "gpu_limit_milli", "train_pools",
)  # fmt: skip
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Place:
    """An address of the pages as a template, its parameters, and values for them that exist."""

    template: str
    parameters: tuple[str, ...]
    real: dict[str, str]
    looks_at_query: bool

    def path(self, **other: str) -> str:
        return "/" + self.template % (self.real | other)


class Noted(QueryDict):
    """The query of a request; `names` has the fields that views and templates look at."""

    names: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.names.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.names.add(str(key))
        return super().__contains__(key)

    def getlist(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().getlist(key, default)


@pytest.fixture(scope="module")
def yard(django_db_setup: None, django_db_blocker: Any) -> Iterator[Yard]:
    """One for all tests here: what they change is rolled back."""
    with standing(django_db_blocker):
        yard = make_yard()
        yield yard
        yard.plant.close()


@pytest.fixture(autouse=True)
def _rolled_back(db: None) -> None:
    """What a test changes is."""


@pytest.fixture(scope="module")
def places(
    yard: Yard, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Place]]:
    with lakes_in(tmp_path_factory.mktemp("nasty")), standing(django_db_blocker):
        yield found_places(yard)


def found_places(yard: Yard) -> list[Place]:
    """Every address of the pages."""
    client = Client()
    client.force_login(yard.cast.root)
    client.raise_request_exception = False
    token, _secret = issue_token(yard.cast.root, "t", actor=yard.cast.actor("root"))
    version = make_version(make_dataset(yard.cast.project), {"a.txt": "alpha"})
    cache = cache_version(version, location_for(yard.cast.project.cluster), actor=SYSTEM)
    artifact = make_artifact(yard.running, "model", {"model.bin": "weights"})
    volume = make_volume(yard.cast.project)
    snapshot = make_snapshot(volume)
    verbs = {"jobs": "resume", "caches": "pin", "volumes": "resize"}
    found = []
    for pattern in _patterns(urlpatterns):
        for template, parameters in normalize(pattern.pattern.regex.pattern):
            names = {
                "charts/projects": "team-a",
                "nodes": "dgx1-1",
                "charts/nodes": "dgx1-1",
                "charts/scaling": "throughput",
                "charts": "loss",
            }
            place = "/".join(template.split("/")[:2])
            real = {
                "name": names.get(place) or names.get(template.partition("/")[0], "team-a"),
                "job_id": str(yard.running.pk),
                "username": "ana",
                "token_id": str(token.pk),
                "tab": "logs",
                "verb": verbs.get(template.partition("/")[0], "unlock"),
                "dataset_id": str(version.dataset_id),
                "artifact_id": str(artifact.pk),
                "cache_id": str(cache.pk),
                "volume_id": str(volume.pk),
                "snapshot_id": str(snapshot.pk),
                "secret": "guess",
                "kind": "artifact",
                "key": str(artifact.pk),
                "metric": "memory",
                "theme": "dark",
            }
            looks = template != "logout" and looks_at_query(client, "/" + template % real)
            found.append(Place(template, tuple(parameters), real, looks))
    assert len(found) > 30
    assert len([place for place in found if place.looks_at_query]) > 10
    return found


def looks_at_query(client: Client, path: str) -> bool:
    """Whether the page at the path asks for any field of a query."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wsgi, "QueryDict", Noted)
        Noted.names.clear()
        client.get(path)
    return bool(Noted.names)


def _patterns(found: Sequence[URLPattern | URLResolver]) -> Iterator[URLPattern]:
    for one in found:
        if isinstance(one, URLPattern):
            yield one
        else:
            yield from _patterns(one.url_patterns)


def visits(place: Place, kind: str) -> Iterator[tuple[str, str]]:
    """(path with query, body; "" for a GET): the nasty value in one place at a time, then in every field."""
    nasty = NASTY[kind]
    if place.looks_at_query:
        yield place.path() + "?" + "&".join(f"{name}={nasty}" for name in ASKED), ""
        yield place.path() + "?" + "&".join(f"{name}={nasty}" for name in ASKED if name not in HIDING), ""
    if kind in DATES:
        return
    for name in place.parameters:
        yield place.path(**{name: nasty}), ""
    yield place.path(), "&".join(f"{name}={nasty}" for name in SENT)


@pytest.mark.parametrize("kind", NASTY)
def test_no_page_breaks(yard: Yard, visit: Visit, places: list[Place], kind: str):
    client = visit(yard.cast.root)
    client.raise_request_exception = False
    broken = []
    for place in places:
        for path, body in visits(place, kind):
            if path == "/logout":
                continue
            answer = client.post(path, body, FORM) if body else client.get(path)
            if answer.status_code >= 500:
                broken.append(("POST" if body else "GET", path[:60]))
    assert broken == []
    assert client.get("/jobs").status_code == 200  # still signed in: the walk was one through the pages


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs?q=a%00", ""),
        ("/projects/%00", ""),
        ("/tokens", "name=a%00&days=7"),
        ("/login", "username=%00&password=x"),
        ("/jobs?%00=1", ""),
    ],
)
def test_nul_is_refused_with_a_page_that_says_so(yard: Yard, visit: Visit, path: str, body: str):
    client = visit(yard.cast.root)
    answer = client.post(path, body, FORM) if body else client.get(path)
    assert answer.status_code == 400
    assert "NUL" in answer.content.decode()


def test_nul_in_a_cookie_is_refused_everywhere(yard: Yard):
    for path in ("/jobs", "/api/v1/whoami"):
        client = Client(headers={"cookie": 'yard_session="aaaaaaaaaa\\000"'})
        answer = client.get(path)
        assert answer.status_code == 400
        assert ("problem+json" in answer["Content-Type"]) == path.startswith("/api/")


def test_new_users_have_names_and_addresses_that_fit(yard: Yard, visit: Visit):
    client = visit(yard.cast.root)
    long_name = client.post("/users", {"username": "n" * 151, "password": PASSWORD})
    assert (long_name.status_code, set(long_name.context["errors"])) == (400, {"username"})
    long_address = client.post(
        "/users", {"username": "nina", "password": PASSWORD, "email": "n" * 243 + "@example.org"}
    )
    assert (long_address.status_code, set(long_address.context["errors"])) == (400, {"email"})
    fits = {"username": "n" * 150, "password": PASSWORD, "email": "n" * 242 + "@example.org"}
    assert client.post("/users", fits).status_code == 302
    assert User.objects.get(username="n" * 150).email == fits["email"]


@pytest.mark.parametrize("days", ["9" * 5000, "0", "a week"])
def test_days_of_a_token_that_make_no_sense_are_refused(yard: Yard, visit: Visit, days: str):
    answer = visit(yard.cast.root).post("/tokens", {"name": "x", "days": days})
    assert (answer.status_code, set(answer.context["errors"])) == (400, {"days"})


@pytest.mark.parametrize("start", ["0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00", "1815-12-10T00:00"])
def test_a_range_that_no_history_reaches_is_refused(yard: Yard, visit: Visit, start: str):
    answer = visit(yard.cast.root).get("/analytics", {"from": start})
    assert answer.status_code == 400
    assert "2026-01-31T08:00" in answer.content.decode()
