"""Route x verb x person x credential x project, generated from the URL resolver: each cell answers what its rule says,
and no cell shows anything of a project that the person has no part in."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpResponseBase

from dashboards.charts.curves import CURVES
from dashboards.charts.scaling import CHARTS as SCALING_CHARTS
from tests.access.roles import OK, Rule
from tests.access.routes import API, rest_routes, routes
from tests.access.rules import PAGES, REST
from tests.access.world import PEOPLE, Target, World

pytestmark = pytest.mark.django_db
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
OTHER_ROUTES = {"metrics"}  # for Prometheus, with a token of its own: tests/app/test_metrics.py
NAMED = {  # what <str:name> stands for, by the route's beginning; elsewhere it is the project
    "clusters/": ("memory",),
    "nodes/": ("dgx1-1",),
    "cache-locations/": ("memory",),
    "departments/": ("research",),
    "node-pools/": ("default",),
    "charts/nodes/": ("dgx1-1",),
    "charts/jobs/": tuple(CURVES),
    "charts/scaling/": tuple(SCALING_CHARTS),
    "charts/analytics/": ("allocation", "utilisation", "waiting", "users"),
}
QUERIES = {
    "telemetry/series": "metric=gpus_allocated",
    "search.json": "q=i",
    "versions/<str:version_id>/content": "place=0",
    "artifacts/<str:artifact_id>/content": "place=0",
    "volumes/<str:volume_id>/content": "path=file",
    "analytics": "range=7d&format=json",
}
# Bytes in or out: no JSON, and nothing that could be tried without being done.
BYTES_IN = (
    "content/lacking",
    "content/packs",
    "content/parts/<str:sha256>",
    "content/manifests",
    "<str:version_id>/verify",
)
FORMS = {"jobs/selected": "verb=stop&row=<str:job_id>"}
INLINE = (
    " style=",
    "<style",
    " onclick",
    'src="http',
    "javascript:",
)  # what the content security policy refuses
TABS = ("logs", "events", "pods", "spec", "metrics")


def test_every_route_has_a_rule_and_every_rule_a_route():
    found = {route for route, _ in routes()}
    pages = {route for route in found if not route.startswith(API)} - OTHER_ROUTES
    assert pages == {route.partition("?")[0] for route in PAGES}
    verbs = {
        route: {name for name in METHODS if hasattr(view, name.lower())} for route, view in rest_routes()
    }
    assert verbs == {route: set(rules) for route, rules in REST.items()}


@pytest.mark.parametrize("route", REST)
def test_rest(world: World, route: str):
    wrong = [
        problem
        for method in METHODS
        for person, credential in _callers(is_declared=method in REST[route])
        for target in _targets(world, route, is_declared=method in REST[route])
        for problem in _rest_cell(world, route, method, person, credential, target)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("route", PAGES, ids=lambda route: route or "home")
def test_pages(world: World, route: str):
    wrong = [
        problem
        for method, rule in PAGES[route].items()
        for person in PEOPLE
        for target in _targets(world, route)
        for path in _paths(route, target)
        for problem in _page_cell(world, path, method, rule, person, target)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_button_is_no_link(world: World):
    """What changes something is not done by a GET."""
    posts = [route for route, rules in PAGES.items() if set(rules) == {"POST"}]
    asked = {
        route: _page(world, _fill(route, world.targets[0]), "GET", "root").status_code for route in posts
    }
    assert asked == dict.fromkeys(posts, 405)


def test_pages_carry_nothing_inline(world: World):
    found = []
    for route, rules in PAGES.items():
        for path in _paths(route, world.targets[0]) if "GET" in rules else ():
            answer = _page(world, path, "GET", "root")
            is_page = answer.headers.get("Content-Type", "").startswith("text/html")
            found += [(path, text) for text in INLINE if is_page and text in _text(answer)]
    assert found == []


def _callers(*, is_declared: bool) -> list[tuple[str, str]]:
    """Everybody with each credential. A verb that no rule names has no handler that could look at the person: it is
    tried without a credential, as a stranger and as the admin."""
    if not is_declared:
        return [(person, "token") for person in ("anonymous", "chi", "root", "read_only")]
    by_session = [(person, "session") for person in PEOPLE if person != "anonymous"]
    return [*((person, "token") for person in (*PEOPLE, "read_only")), *by_session]


def _targets(world: World, route: str, *, is_declared: bool = True) -> tuple[Target, ...]:
    """Both projects where the route names something of one and a handler may look it up; else the first, which then
    only says who asks."""
    ids = (
        "job_id",
        "username",
        "token_id",
        "dataset_id",
        "version_id",
        "volume_id",
        "snapshot_id",
        "cache_id",
        "artifact_id",
        "key",
        "projects/<",
    )
    names_one = any(name in route for name in ids)
    return world.targets if names_one and is_declared else world.targets[:1]


def _rest_cell(
    world: World, route: str, method: str, person: str, credential: str, target: Target
) -> Iterator[str]:
    rule = REST[route].get(method)
    path = f"/{API}{_fill(route, target)}"
    can_try = method != "GET" and route != "login" and not route.endswith(BYTES_IN)
    query = [QUERIES.get(route, ""), "dry_run=true" if can_try else ""]
    answer = _send(world, method, path + "?" + "&".join(filter(None, query)), person, credential)
    if rule is None:
        # who may not even read is told no more than that
        is_right = answer.status_code in (401, 403, 405)
        wanted = "401, 403 or 405"
    else:
        wanted_status = target.expected(rule, person)
        is_right, wanted = _rest_status(answer) == wanted_status, str(wanted_status)
    cell = f"{method} {path} as {person} ({credential}, {target.project.name})"
    if not is_right or answer.status_code >= 500:
        yield f"{cell}: {answer.status_code}, not {wanted}"
    for word in world.leaks(person, _text(answer), path):
        yield f"{cell} shows {word}"


def _rest_status(answer: HttpResponseBase) -> int:
    """A refusal of the person, or OK: also for wrong names and passwords at the door, which are refusals of a body."""
    is_refusal = answer.status_code in (401, 403, 404, 405) and "wrong_credentials" not in _text(answer)
    return answer.status_code if is_refusal or answer.status_code >= 500 else OK


def _page_cell(
    world: World, path: str, method: str, rule: Rule, person: str, target: Target
) -> Iterator[str]:
    form = _fill(FORMS.get(path, ""), target) if method == "POST" else ""
    answer, wanted = _page(world, path, method, person, form), target.expected(rule, person)
    status = answer.status_code
    if (status == 302 and not answer.headers["Location"].startswith("/login")) or status in (400, 409):
        status = OK
    cell = f"{method} /{path} as {person} ({target.project.name})"
    if status != wanted and not (path == "logout" and status == 302):
        yield f"{cell}: {answer.status_code}, not {wanted}"
    for word in world.leaks(person, _text(answer), path + form):
        yield f"{cell} shows {word}"


def _page(world: World, path: str, method: str, person: str, form: str = "") -> HttpResponseBase:
    query = f"?{QUERIES[path]}" if path in QUERIES else ""
    return _send(world, method, f"/{path}{query}", person, "session", form)


def _send(
    world: World, method: str, path: str, person: str, credential: str, form: str = ""
) -> HttpResponseBase:
    kind = "application/x-www-form-urlencoded" if form else ""
    with transaction.atomic():
        answer: Any = world.client(person, credential).generic(method, path, form, kind)
        if answer.streaming:
            answer.content_read = b"".join(answer.streaming_content)
        transaction.set_rollback(True)
    return answer


def _text(answer: Any) -> str:
    content: bytes = answer.content_read if answer.streaming else answer.content
    return content.decode(errors="replace")


def _paths(route: str, target: Target) -> list[str]:
    """The paths of a page: one for each tab of a job's, and for each chart."""
    if "<str:tab>" in route:
        return [_fill(route.replace("<str:tab>", tab), target) for tab in TABS]
    return [_fill(route.replace("<str:name>", name), target) for name in _names(route, target)]


def _names(route: str, target: Target) -> tuple[str, ...]:
    found = (names for start, names in NAMED.items() if route.startswith(start))
    return next(found, (target.project.name,))


def _fill(route: str, target: Target) -> str:
    return (
        route.replace("<str:job_id>", str(target.job.pk))
        .replace("<str:username>", target.user.username)
        .replace("<str:token_id>", str(target.token.pk))
        .replace("<int:token_id>", str(target.token.pk))
        .replace("<str:secret>", "x" * 43)
        .replace("<str:tree>", target.tree)
        .replace("<str:dataset_id>", str(target.version.dataset_id))
        .replace("<str:version_id>", str(target.version.pk))
        .replace("<str:volume_id>", str(target.volume.pk))
        .replace("<str:snapshot_id>", str(target.snapshot.pk))
        .replace("<str:kind>/<str:key>", f"artifact/{target.artifact.pk}")
        .replace("<str:artifact_id>", str(target.artifact.pk))
        .replace("<str:cache_id>", str(target.cache.pk))
        .replace("<str:registration_id>", str(target.registration.pk))
        .replace("<str:import_id>", str(target.code_import.pk))
        .replace("<str:version>", "1")
        .replace("<str:tag>", "-".join((target.version.dataset.name.split("-")[0], "tag")))
        .replace("<str:subset>", "-".join((target.version.dataset.name.split("-")[0], "part")))
        .replace("<str:sha256>", "0" * 64)
        .replace("<str:name>", _names(route, target)[0])
    )
