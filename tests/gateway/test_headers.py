"""What passes between a browser and a job's server."""

from __future__ import annotations

import pytest

from controlplane.live.asgi import Headers
from jobs.gateway import cookies
from jobs.gateway import headers as rules

ADDRESS = "127.0.0.1:4000"


def names(headers: Headers) -> list[bytes]:
    return [name for name, _ in headers]


def sent_on(*, is_cookie: bool = True, **headers: str) -> dict[bytes, bytes]:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return dict(
        rules.to_pod(
            given,
            host="x.jobs.example",
            scheme="https",
            client="10.0.0.1",
            has_own_authorization=is_cookie,
            service_token="of-this-job",
        )
    )


def given_back(*headers: tuple[bytes, bytes]) -> Headers:
    return rules.to_browser(list(headers), address=ADDRESS)


@pytest.mark.parametrize(
    "name",
    ["authorization", "referer", "origin", "host", "proxy_authorization", "upgrade", "connection",
     "transfer_encoding", "forwarded"],
)  # fmt: skip
def test_credentials_and_hop_by_hop_headers_stay_here(name: str):
    passed = sent_on(is_cookie=False, accept="*/*", **{name: "secret"})
    assert b"secret" not in passed.values()
    assert passed[b"accept"] == b"*/*"


def test_the_jobs_own_credentials_pass():
    passed = sent_on(
        authorization="token of-the-notebook", x_xsrftoken="x", cookie="a=1; yard_service=s; b=2"
    )
    assert passed[b"authorization"] == b"token of-the-notebook"
    assert passed[b"x-xsrftoken"] == b"x"
    assert passed[b"cookie"] == b"a=1; b=2"


def test_the_pod_is_told_where_it_is_seen_and_cannot_be_lied_to():
    passed = sent_on(
        x_forwarded_host="evil", x_forwarded_for="1.2.3.4", x_forwarded_prefix="/evil", x_real_ip="1.2.3.4"
    )
    assert passed[b"x-forwarded-host"] == b"x.jobs.example"
    assert passed[b"x-forwarded-for"] == b"10.0.0.1"
    assert passed[b"x-forwarded-proto"] == b"https"
    assert b"x-forwarded-prefix" not in passed
    assert b"x-real-ip" not in passed


def test_only_the_gateway_sends_the_service_token():
    passed = sent_on(x_trainyard_service_token="guessed")
    assert passed[b"x-trainyard-service-token"] == b"of-this-job"


def test_headers_that_connection_names_are_hop_by_hop_too():
    assert b"x-secret-hop" not in sent_on(connection="close, X-Secret-Hop", x_secret_hop="1")


@pytest.mark.parametrize(
    "given",
    ["yard_session=1", "YARD_Session=1", "__Host-yard_session=1", "__host-yard_csrf=1", "yard_service=1",
     " yard_probe = 1", "yard_service"],
)  # fmt: skip
def test_no_cookie_of_ours_reaches_a_job_or_is_set_by_one(given: str):
    assert sent_on(cookie=f"a=1;{given}; b=2")[b"cookie"] == b"a=1; b=2"
    assert b"cookie" not in sent_on(cookie=given)
    for text in (given, f"={given}", f" = {given}; Path=/"):
        assert cookies.from_pod(text.encode()) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a=1", "a=1"), ("a=1; Path=/x; Domain=localhost; HttpOnly", "a=1; Path=/x; HttpOnly"),
        ("a=1;domain=.example.org", "a=1"), ("a=1; DOMAIN", "a=1"), ("a=domain=x", "a=domain=x"),
        ("my_yard_session=1", "my_yard_session=1"), ("sessionid=1; SameSite=None", "sessionid=1; SameSite=None"),
    ],
)  # fmt: skip
def test_a_jobs_cookies_are_for_its_host_alone(given: str, expected: str):
    assert given_back((b"Set-Cookie", given.encode()))[0] == (b"set-cookie", expected.encode())


@pytest.mark.parametrize(
    "name",
    [
        b"clear-site-data",
        b"Strict-Transport-Security",
        b"alt-svc",
        b"nel",
        b"report-to",
        b"transfer-encoding",
    ],
)
def test_a_job_says_nothing_for_other_hosts(name: bytes):
    assert name.lower() not in [passed.lower() for passed in names(given_back((name, b"x")))]


def test_a_jobs_page_is_in_no_foreign_frame_whatever_it_says():
    passed = given_back((b"content-security-policy", b"frame-ancestors *"), (b"service-worker-allowed", b"/"))
    policies = [value for name, value in passed if name == b"content-security-policy"]
    assert policies == [b"frame-ancestors *", rules.FRAMES]  # both hold: the strictest wins
    assert (b"service-worker-allowed", b"/") in passed


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/lab?x=1", "/lab?x=1"), ("lab", "lab"), (f"http://{ADDRESS}/lab?x#y", "/lab?x#y"),
        (f"http://{ADDRESS}", "/"), (f"http://{ADDRESS}//evil.example/a", "/evil.example/a"),
        ("https://other.example/a", "https://other.example/a"), ("//other.example/a", "//other.example/a"),
        ("http://[", "http://["),
    ],
)  # fmt: skip
def test_redirects_to_the_pods_own_address_stay_on_its_host(location: str, expected: str):
    assert dict(given_back((b"location", location.encode())))[b"location"] == expected.encode()
