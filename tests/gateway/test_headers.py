"""What passes between a browser and a job's server."""

from __future__ import annotations

import pytest

from controlplane.gateway import headers as rules
from controlplane.gateway.proxy import PATH
from controlplane.live.wire import Headers

ADDRESS, PUBLIC = "127.0.0.1:4000", "/services/x/8888"
PREFIX = f"{PUBLIC}/~ticket"


def names(headers: Headers) -> list[bytes]:
    return [name for name, _ in headers]


def sent_on(**headers: str) -> dict[bytes, bytes]:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return dict(rules.to_pod(given, host="yard.example", prefix=PUBLIC, scheme="http", client="10.0.0.1"))


def given_back(*headers: tuple[bytes, bytes], is_ticketed: bool = True) -> Headers:
    return rules.to_browser(
        list(headers), address=ADDRESS, prefix=PREFIX, public_prefix=PUBLIC, is_ticketed=is_ticketed
    )


@pytest.mark.parametrize(
    "name",
    ["cookie", "authorization", "x-csrftoken", "referer", "origin", "host", "proxy-authorization", "upgrade",
     "connection", "transfer-encoding", "forwarded"],
)  # fmt: skip
def test_credentials_and_hop_by_hop_headers_stay_here(name: str):
    passed = rules.to_pod(
        [(name.encode(), b"secret"), (b"accept", b"*/*")], host="h", prefix="", scheme="http", client="c"
    )
    assert b"secret" not in [value for _, value in passed]
    assert (b"accept", b"*/*") in passed


def test_the_pod_is_told_where_it_is_seen_and_cannot_be_lied_to():
    passed = sent_on(x_forwarded_prefix="/evil", x_forwarded_for="1.2.3.4", accept="text/html")
    assert passed[b"x-forwarded-prefix"] == PUBLIC.encode()
    assert passed[b"x-forwarded-host"] == b"yard.example"
    assert passed[b"x-forwarded-for"] == b"10.0.0.1"


def test_headers_that_connection_names_are_hop_by_hop_too():
    assert b"x-secret-hop" not in sent_on(connection="close, X-Secret-Hop", x_secret_hop="1")


@pytest.mark.parametrize(
    "name",
    [b"set-cookie", b"Set-Cookie", b"clear-site-data", b"service-worker-allowed", b"strict-transport-security",
     b"www-authenticate", b"transfer-encoding", b"access-control-allow-credentials"],
)  # fmt: skip
def test_a_job_sets_nothing_for_our_host(name: bytes):
    assert name.lower() not in [passed.lower() for passed in names(given_back((name, b"x")))]


def test_every_answer_is_sandboxed_whatever_the_job_says():
    passed = given_back((b"content-security-policy", b"default-src *"), (b"referrer-policy", b"unsafe-url"))
    policies = [value for name, value in passed if name == b"content-security-policy"]
    assert rules.SANDBOX in policies
    assert b"allow-same-origin" not in rules.SANDBOX
    assert [value for name, value in passed if name == b"referrer-policy"] == [b"no-referrer"]


def test_only_an_answer_to_a_ticket_may_be_read_by_other_origins():
    evil = (b"access-control-allow-origin", b"https://evil.example")
    assert dict(given_back(evil))[b"access-control-allow-origin"] == b"*"
    assert b"access-control-allow-origin" not in names(given_back(evil, is_ticketed=False))


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/lab?x=1", f"{PREFIX}/lab?x=1"), ("lab", "lab"), (f"http://{ADDRESS}/lab", f"{PREFIX}/lab"),
        (f"http://{ADDRESS}", f"{PREFIX}/"), (f"{PUBLIC}/lab", f"{PREFIX}/lab"), (PUBLIC, PREFIX),
        ("https://other.example/a", "https://other.example/a"), ("//other.example/a", "//other.example/a"),
        (f"{PUBLIC}8/a", f"{PREFIX}{PUBLIC}8/a"),
    ],
)  # fmt: skip
def test_redirects_stay_below_the_service(location: str, expected: str):
    assert dict(given_back((b"location", location.encode())))[b"location"] == expected.encode()


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [
        ("/services/{id}/8888/", True), ("/services/{id}/8888", True), ("/services/{id}/8888/a/b%2Fc", True),
        ("/services/{id}/0/", False), ("/services/{id}/088/", False), ("/services/{id}/123456/", False),
        ("/services/x/8888/", False), ("/services/{id}/", False), ("/services/{id}/8888x/", False),
    ],
)  # fmt: skip
def test_paths(path: str, is_ours: bool):
    text = path.replace("{id}", "0c5a1c4e-55c0-4cf2-8f5e-000000000000")
    assert (PATH.fullmatch(text.encode()) is not None) == is_ours
