"""Whatever a client sends is answered with a problem that names the field and leaves nothing behind; never a 5xx."""

import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.api.parsers import parse_json
from controlplane.api.problems import Problem
from controlplane.models import Event
from jobs.models import Job
from tests.access.routes import rest_routes
from tests.app.api.client import Api
from tests.cast import Cast

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
SPEC: dict[str, Any] = {"name": "hyper2", "kind": "train", "gpus": 1, "command": ["sleep", "1"]}
JOBS = "projects/team-a/jobs"

SPECS = [
    ({"gpus": 0.3333333}, "/gpus", "gpu_share_too_fine"),
    ({"gpus": -1}, "/gpus", "out_of_range"),
    ({"gpus": 9}, "/gpus", "spec_impossible"),
    ({"gpus": 1.5}, "/gpus", "gpu_share_above_one"),
    ({"gpus": "1"}, "/gpus", "not_a_number"),
    ({"gpus": True}, "/gpus", "not_a_number"),
    ({"gpus": 0.5, "workers": 2}, "/workers", "share_needs_one_worker"),
    ({"gpu_memory_mib": 1024}, "/gpu_memory_mib", "gpus_or_memory"),
    ({"colour": "red"}, "/colour", "unknown_field"),
    ({"a/b~c": 1}, "/a~1b~0c", "unknown_field"),
    ({"name": "Hyper_2"}, "/name", "not_a_dns_label"),
    ({"name": "a" * 64}, "/name", "not_a_dns_label"),
    ({"name": ""}, "/name", "not_a_dns_label"),
    ({"name": "name\n"}, "/name", "not_a_dns_label"),
    ({"name": None}, "/name", "not_a_dns_label"),
    ({"kind": "cron"}, "/kind", "unknown_kind"),
    ({"env": {"A": "x\0y"}}, "/env/A", "contains_nul"),
    ({"env": {"A\0": "x"}}, "/env/A\ufffd", "bad_name"),
    ({"env": {"1A": "x"}}, "/env/1A", "bad_name"),
    ({"env": {"A": 1}}, "/env/A", "not_a_string"),
    ({"env": {f"A{i}": "x" for i in range(101)}}, "/env", "too_many"),
    ({"env": {"A": "x" * 40_000}}, "/env/A", "too_long"),
    ({"command": "sleep 1"}, "/command", "not_a_list"),
    ({"command": ["sleep", 1]}, "/command/1", "not_a_string"),
    ({"workers": 0}, "/workers", "out_of_range"),
    ({"workers": 10_001}, "/workers", "out_of_range"),
    ({"workers": 1.0}, "/workers", "not_a_whole_number"),
    ({"priority": 1001}, "/priority", "out_of_range"),
    ({"cpus": 0}, "/cpus", "out_of_range"),
    ({"memory_mib": 1 << 40}, "/memory_mib", "out_of_range"),
    ({"retries": -1}, "/retries", "out_of_range"),
    ({"max_runtime_seconds": 0}, "/max_runtime_seconds", "out_of_range"),
    ({"working_dir": "tmp"}, "/working_dir", "not_an_absolute_path"),
    ({"working_dir": "/a/../b"}, "/working_dir", "not_an_absolute_path"),
    ({"labels": {"k": "v" * 64}}, "/labels/k", "too_long"),
    ({"ports": [{"port": 70000}]}, "/ports/0/port", "out_of_range"),
    ({"ports": [{"port": 80, "host": 1}]}, "/ports/0/host", "unknown_field"),
    ({"preemptible": "no"}, "/preemptible", "not_a_boolean"),
    ({"secret_env": {"A": "x"}}, "/secret_env/A", "not_a_secret_key"),
    ({"secret_env": {"A": {"secret": "S!", "key": "k"}}}, "/secret_env/A/secret", "bad_name"),
    ({"secret_env": {"A": {"secret": "s", "key": "a/b"}}}, "/secret_env/A/key", "bad_name"),
    ({"secret_env": {"A": {"secret": "s", "key": "k"}}, "env": {"A": "1"}}, "/secret_env/A", "name_twice"),
    ({"image_pull_secrets": ["a b"]}, "/image_pull_secrets/0", "bad_name"),
    ({"extra_resources": {"nvidia.com/gpu": "1"}}, "/extra_resources/nvidia.com~1gpu", "gpus_go_by_quota"),
    (
        {"extra_resources": {"example.com/MyGPU": "1"}},
        "/extra_resources/example.com~1MyGPU",
        "gpus_go_by_quota",
    ),
    ({"extra_resources": {"cpu": "1"}}, "/extra_resources/cpu", "not_an_extra_resource"),
    (
        {"extra_resources": {"vpc.amazonaws.com/efa": "999999999999T"}},
        "/extra_resources/vpc.amazonaws.com~1efa",
        "out_of_range",
    ),
    ({"extra_resources": {"hugepages-2Mi": "-1Gi"}}, "/extra_resources/hugepages-2Mi", "bad_quantity"),
    ({"kind": "interactive", "preemptible": True}, "/preemptible", "never_preemptible"),
    ({"kind": "interactive", "workers": 2}, "/workers", "one_worker"),
    ({"min_workers": 1}, "/min_workers", "only_elastic"),
    ({"kind": "elastic", "workers": 2, "min_workers": 3}, "/min_workers", "above_workers"),
    ({"kind": "elastic", "workers": 2, "max_workers": 1}, "/max_workers", "below_workers"),
]


@pytest.mark.parametrize(("change", "pointer", "code"), SPECS)
def test_a_spec_is_refused_with_its_field_and_leaves_nothing(change, pointer, code, api: AsPerson):
    ben = api("ben")
    events = Event.objects.count()
    reply = ben.post(JOBS, SPEC | change)
    assert (reply.status, reply.code, reply.pointers) == (400, code, [pointer])
    assert reply.body["detail"]
    assert (Job.objects.count(), Event.objects.count()) == (0, events)


def test_every_bad_field_is_named_at_once(api: AsPerson):
    reply = api("ben").post(JOBS, {"gpus": -1, "nope": 1, "workers": 0})
    assert reply.code == "invalid"
    assert set(reply.pointers) == {"/nope", "/gpus", "/workers", "/name", "/kind"}


def test_the_largest_that_fits_is_told(api: AsPerson):
    assert "at most 8" in api("ben").post(JOBS, SPEC | {"gpus": 9}).body["detail"]


RAW = [
    (b"{", "broken_json"),
    (b"", "required"),
    (b"nonsense", "broken_json"),
    (b'{"name":"a",}', "broken_json"),
    (b"[]", "not_an_object"),
    (b'"text"', "not_an_object"),
    (b"null", "invalid"),
    (b'{"gpus": NaN}', "not_a_finite_number"),
    (b'{"gpus": Infinity}', "not_a_finite_number"),
    (b'{"gpus": -Infinity}', "not_a_finite_number"),
    (b'{"gpus": 1e999}', "not_a_finite_number"),
    (b'{"gpus": ' + b"9" * 30 + b"}", "number_too_large"),
    (b'{"gpus": ' + b"9" * 5000 + b"}", "number_too_large"),
    (b'{"name": "a", "name": "b"}', "duplicate_name"),
    (b'{"env": {"A": "1", "A": "2"}}', "duplicate_name"),
    (b'{"name": "\xff"}', "not_utf8"),
    (b'{"name": "\\ud800"}', "not_unicode"),
    (b'{"\\udfff": 1}', "not_unicode"),
    (b"\xef\xbb\xbf{}", "broken_json"),
    (b"{}\0", "broken_json"),
    (b'{"a": ' * 33 + b"1" + b"}" * 33, "nested_too_deep"),
    (b"[" * 500_000, "nested_too_deep"),
    (b'{"a":"' + b'\\"' * 400_000, "broken_json"),
    (b'{"name": "' + b"x" * (1 << 20) + b'"}', "body_too_large"),
    (b"x" * 10_000_000, "body_too_large"),
]


@pytest.mark.parametrize(("raw", "code"), RAW, ids=range(len(RAW)))
def test_a_body_that_is_not_json_as_we_read_it(raw: bytes, code: str, api: AsPerson):
    reply = api("ben").post(JOBS, raw)
    expected = {"body_too_large": 413}.get(code, 400)
    if code == "required":
        assert (reply.status, set(reply.pointers)) == (400, {"/name", "/kind"})
    else:
        assert (reply.status, reply.code) == (expected, code)
    assert Job.objects.count() == 0


def test_a_repeated_name_is_found_in_linear_time():
    """It took time that grew with the square of the number of names, before authentication."""
    names = [b'"k%d":1' % number for number in range(40_000)]

    def seconds(raw: bytes) -> float:
        began = time.process_time()
        with suppress(Problem):
            parse_json(raw)
        return time.process_time() - began

    unique = min(seconds(b"{" + b",".join(names) + b"}") for _ in range(3))
    assert seconds(b"{" + b",".join([*names, names[-1]]) + b"}") < 10 * unique + 0.1


def test_a_verb_without_fields_refuses_a_body_and_does_nothing(api: AsPerson, job: Job):
    for verb, path in (
        ("POST", f"jobs/{job.pk}/stop"),
        ("DELETE", f"jobs/{job.pk}"),
        ("POST", f"jobs/{job.pk}/suspend"),
    ):
        reply = api("ben").send(verb, path, {"force": True})
        assert (reply.status, reply.pointers) == (400, ["/force"])
        job.refresh_from_db()
        assert job.state == "queued"
    assert api("ben").post(f"jobs/{job.pk}/stop", {}).status == 200


def test_nesting_up_to_the_limit_is_read_and_brackets_in_strings_do_not_count(api: AsPerson):
    deep: Any = "x"
    for _ in range(30):
        deep = [deep]
    assert api("ben").post(JOBS, SPEC | {"command": deep}).code == "not_a_string"
    text = "[{" * 100 + '\\"' + "[" * 50
    assert api("ben").post(JOBS, SPEC | {"args": [text]}).body["args"] == [text]


PROJECTS = [
    ({"name": "Team"}, "/name", "not_a_dns_label"),
    ({"name": "a" * 51}, "/name", "not_a_dns_label"),
    ({}, "/name", "required"),
    ({"name": "x", "gpu_quota": -1}, "/gpu_quota", "out_of_range"),
    ({"name": "x", "gpu_quota": 1.23456}, "/gpu_quota", "gpu_share_too_fine"),
    ({"name": "x", "gpu_quota": 1e12}, "/gpu_quota", "out_of_range"),
    ({"name": "x", "gpu_quota": "4"}, "/gpu_quota", "not_a_number"),
    ({"name": "x", "description": "\0"}, "/description", "contains_nul"),
    ({"name": "x", "cluster": "moon"}, "/cluster", "not_found"),
    ({"name": "x", "department": "moon"}, "/department", "not_found"),
    ({"name": "x", "node_pools": {"train": ["moon"]}}, "/node_pools/train/0", "no_such_node_pool"),
    ({"name": "x", "node_pools": {"cron": []}}, "/node_pools/cron", "unknown_kind"),
    ({"name": "x", "node_pools": []}, "/node_pools", "not_an_object"),
    ({"name": "x", "members": [{"user": "ana"}]}, "/members/0", "not_a_member"),
    ({"name": "x", "members": [{"user": "ana", "role": "king"}]}, "/members/0/role", "unknown_role"),
    ({"name": "x", "members": [{"user": "nobody", "role": "owner"}]}, "/user", "not_found"),
    ({"name": "x", "status": {}}, "/status", "read_only"),
    ({"name": "x", "interactive_max_seconds": 0}, "/interactive_max_seconds", "out_of_range"),
]


@pytest.mark.parametrize(("body", "pointer", "code"), PROJECTS)
def test_a_project_is_refused_with_its_field(body, pointer, code, api: AsPerson):
    reply = api("root").post("projects", body)
    assert (reply.status, reply.code, reply.pointers) == (400, code, [pointer])
    assert api("root").get("projects/x").status == 404


IDS = [
    "x",
    "0",
    "-1",
    "9" * 30,
    "9" * 5000,
    "%00",
    "%FF",
    "..",
    "%2e%2e%2f",
    "a" * 3000,
    "\u202e",
    "{}",
    "' OR 1=1 --",
    "%ed%a0%80",
]


@pytest.mark.parametrize("wrong", IDS)
def test_an_id_of_the_wrong_shape_is_not_found(wrong: str, api: AsPerson):
    root = api("root")
    for place in (
        "jobs/{}",
        "jobs/{}/logs",
        "projects/{}",
        "projects/{}/jobs",
        "nodes/{}",
        "tokens/{}",
        "users/{}",
    ):
        assert root.get(place.format(wrong)).status == 404, place


def test_more_query_fields_than_anybody_needs(api: AsPerson):
    reply = api("ben").get("jobs?" + "&".join(f"a{number}=1" for number in range(1500)))
    assert (reply.status, reply.headers["Content-Type"]) == (400, "application/problem+json")
    assert api("ben").get("jobs?name=" + "a" * 60_000).status == 200


HEADERS = {
    "accept": [
        "",
        ";;;",
        "/",
        "*/*;q=",
        "application/json;q=nan",
        "a" * 5000,
        "\x7f",
        "application/json;;=,",
    ],
    "if_none_match": ["", "*", '"', ",,,", "W/", "\u00e9", "x" * 5000],
    "if_match": ["", '"', ",", "W/\u00e9"],
    "authorization": [
        "",
        "Bearer",
        "Bearer ",
        "Basic eDp5",
        "Bearer \u00e9",
        "Bearer " + "x" * 8000,
        "x y z",
    ],
    "x_request_id": ["", "\u00e9", "x" * 500, "a\tb"],
    "idempotency_key": [" ", "\u00e9", "x" * 300],
    "content_type": [
        "",
        ";",
        "application/json; charset=utf-16",
        "application/json;charset=\u00e9",
        "\x7f/x",
    ],
    "cookie": ["yard_session=\u00e9", "yard_session=;;=", "yard_csrf=" + "x" * 4000],
}


@pytest.mark.parametrize("name", HEADERS)
def test_no_header_makes_the_server_fail(name: str, api: AsPerson, job: Job):
    for value in HEADERS[name]:
        for verb, path, body in (
            ("GET", f"jobs/{job.pk}", None),
            ("PATCH", f"jobs/{job.pk}", {"priority": 1}),
        ):
            assert api("ben").send(verb, path, body, **{name: value}).status < 500, value


TEXTS = st.text(max_size=12) | st.sampled_from(
    ["\0", "\ud7ff", "9" * 25, "-1", "1e999", "team-a", "' --", "%", "a,b"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXTS, children, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_request_to_any_route_makes_the_server_fail(data: st.DataObject, cast: Cast, job: Job):
    known = [route for route, _ in rest_routes() if route != "openapi.json"]
    route = data.draw(st.sampled_from(known))
    verb = data.draw(st.sampled_from(["GET", "POST", "PATCH", "DELETE"]))
    path = "/".join(_part(part, data, job) for part in route.split("/"))
    names = st.sampled_from(
        ["limit", "cursor", "ordering", "fields", "state", "since", "offset", "metric", "from", "x"]
    )
    query = data.draw(st.dictionaries(names, TEXTS, max_size=2))
    fields = st.sampled_from(
        ["name", "kind", "gpus", "env", "user", "role", "gpu_quota", "settings", "workers"]
    )
    body = data.draw(st.none() | JSON | st.dictionaries(fields, JSON, max_size=4))
    reply = Api(cast.root).send(verb, path + _encoded(query), _raw(body))
    assert reply.status < 500, (verb, path, query, body, reply.body)
    if reply.status >= 400:
        assert reply.headers["Content-Type"] == "application/problem+json"
        assert set(reply.body) == {"type", "title", "status", "code", "detail", "errors"}


def _part(part: str, data: st.DataObject, job: Job) -> str:
    if not part.startswith("<"):
        return part
    wanted = data.draw(st.sampled_from(["team-a", "dgx1-1", "memory", "ben", "1", str(job.pk)]) | TEXTS)
    return quote(wanted.encode("utf-8", "surrogatepass"), safe="")


def _encoded(query: dict[str, str]) -> str:
    return "?" + urlencode(query, errors="surrogatepass") if query else ""


def _raw(body: Any) -> bytes | None:
    return None if body is None else json.dumps(body).encode()


def test_the_corpus_in_every_text_field_of_every_body(api: AsPerson, cast: Cast):
    """Texts that have broken databases, shells and pages elsewhere are stored as they are or refused, never a 5xx."""
    random.seed(1)
    corpus = [
        "'; DROP TABLE jobs_job; --",
        "<script>alert(1)</script>",
        "\u202egnp",
        "%s%n",
        "${7*7}",
        "\x1b[31m",
        "\u0000",
    ]
    for text in corpus:
        replies = [
            api("root").post("users", {"username": text}),
            api("root").post("tokens", {"name": text}),
            api("root").patch("projects/team-a", {"description": text}),
            api("ben").post(JOBS, SPEC | {"name": f"job-{random.randrange(10**9)}", "env": {"A": text}}),
        ]
        assert all(reply.status in (200, 201, 400, 409) for reply in replies), text
        if replies[2].status == 200:
            assert api("ana").get("projects/team-a").body["description"] == text
