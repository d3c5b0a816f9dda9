"""Pages of jobs under a wildcard name, behind a proxy that ends TLS and passes the Host header on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.yard import Yard, call, member
from tests.servers import control_plane

pytestmark = pytest.mark.slow
PUBLIC, PAGE = "https://yard.example.org", "text/html"


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A job whose engine has no ports: how far the way to them leads is what is seen here."""
    variables = {
        "TRAINYARD_PUBLIC_URL": PUBLIC,
        "TRAINYARD_SERVICES_HOST": "jobs.example.org",
        "TRAINYARD_CLUSTERS": "memory:a=1x1024",
        "TRAINYARD_WEB_PROCESSES": "2",
    }
    with control_plane(tmp_path_factory.mktemp("state"), variables) as server:
        call(server, "POST", "/api/v1/projects", {"name": "team-a", "gpu_quota": 1})
        ana = member(server, "ana", "member")
        body = {"name": "web", "kind": "interactive", "ports": [{"port": 8888}], "command": ["sleep", "600"]}
        yield Yard(server, call(server, "POST", "/api/v1/projects/team-a/jobs", body)["id"], ana, "", "")


def name_of(wild: Yard) -> str:
    return f"{wild.job_id}-8888.jobs.example.org"


def test_addresses_have_the_public_scheme_and_the_wildcard_name(wild: Yard):
    status, headers, _ = wild.get(wild.entrance("/a?b"), wild.ana, Host="yard.example.org")
    assert (status, headers["Location"]) == (307, f"https://{name_of(wild)}/a?b")
    status, headers, _ = wild.get("/a?b", Host=name_of(wild), Accept=PAGE)
    assert status == 302
    assert headers["Location"] == f"{PUBLIC}/services/{wild.job_id}/8888/.trainyard/open?next=/a%3Fb"


def test_cookies_of_both_hosts_are_for_one_host_and_for_tls_alone(wild: Yard):
    session = wild.sign_in(public_url=PUBLIC)
    assert session.startswith("__Host-yard_session=")
    status, headers, _ = wild.get(wild.entrance("/a"), Host="yard.example.org", Cookie=session, Accept=PAGE)
    assert headers["Location"].startswith(f"https://{name_of(wild)}/.trainyard/enter?ticket=")
    target = headers["Location"].removeprefix(f"https://{name_of(wild)}")
    status, headers, _ = wild.get(target, Host=name_of(wild), Accept=PAGE)
    assert (status, headers["Location"]) == (302, f"https://{name_of(wild)}/a")
    cookie = headers["Set-Cookie"]
    assert cookie.startswith("__Host-yard_service=")
    assert "Secure" in cookie
    assert "domain" not in cookie.lower()
    sent = cookie.partition(";")[0]
    assert wild.get("/a", Host=name_of(wild), Cookie=sent)[0] == 503  # let in; the memory engine has no ports
    assert wild.get("/a", Host=name_of(wild), Cookie=sent.removeprefix("__Host-"))[0] == 401
    assert wild.get("/jobs", Host="yard.example.org", Cookie=session.removeprefix("__Host-"))[0] == 302


def test_a_ticket_works_once_with_several_web_processes(wild: Yard):
    session = wild.sign_in(public_url=PUBLIC)
    _, headers, _ = wild.get(wild.entrance(), Host="yard.example.org", Cookie=session, Accept=PAGE)
    target = headers["Location"].removeprefix(f"https://{name_of(wild)}")
    found = [wild.get(target, Host=name_of(wild), Accept=PAGE)[0] for _ in range(8)]
    assert found == [302] + [403] * 7


@pytest.mark.parametrize(
    "name", ["jobs.example.org", "x.jobs.example.org", "{id}-8888.localhost", "yard.jobs.example.org"]
)
def test_other_names_are_refused(wild: Yard, name: str):
    assert wild.get("/login", Host=name.replace("{id}", wild.job_id))[0] == 400
