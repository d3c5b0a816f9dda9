"""A job's page on an origin of its own: how a browser comes in, and what neither side can do to the other."""

from __future__ import annotations

import json
import socket
import urllib.parse

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.gateway.yard import PASSWORD, Yard, call, member, seen
from tests.servers import chromium
from tests.waiting import patience, wait_until

pytestmark = pytest.mark.slow
MISSING = "00000000-0000-4000-8000-000000000000"
PAGE = "text/html,*/*;q=0.8"


@pytest.fixture(scope="module")
def session(yard: Yard) -> str:
    return yard.sign_in()


@pytest.fixture(scope="module")
def cookie(yard: Yard, session: str) -> str:
    """What lets ana's browser in at port 8888."""
    return yard.service_cookie(session)


def ticket_url(yard: Yard, session: str, rest: str = "/", port: int = 8888) -> str:
    status, headers, _ = yard.get(yard.entrance(rest, port), Cookie=session, Accept=PAGE)
    assert status == 302
    return str(headers["Location"])


def redeem(yard: Yard, url: str, host: str = "", **headers: str) -> tuple[int, str | None, list[str]]:
    """Status, Location and Set-Cookie of a ticket's exchange, at another host if one is given."""
    parts = urllib.parse.urlsplit(url)
    sent = {"Host": host or parts.netloc, "Accept": PAGE, **headers}
    status, found, _ = yard.get(f"{parts.path}?{parts.query}", **sent)
    return status, found["Location"], found.get_all("Set-Cookie") or []


# Coming in


def test_service_urls_are_on_hosts_of_the_job(yard: Yard):
    job = yard.server.call("GET", f"/api/v1/jobs/{yard.job_id}")[1]
    assert job["status"]["service_urls"] == [f"{yard.origin(port)}/" for port in (8888, 6006, 7777, 5555)]


def test_a_browser_comes_in_by_the_control_planes_host_and_keeps_a_clean_address(yard: Yard, session: str):
    cookies = {yard.netloc: session}
    address, (status, _, body) = yard.visit(f"{yard.server.url}{yard.entrance('/a%2Fb?c=%20d&e')}", cookies)
    assert (address, status) == (f"{yard.origin()}/a%2Fb?c=%20d&e", 200)
    assert seen(body)["path"] == "/a%2Fb?c=%20d&e"
    assert "yard_" not in seen(body)["headers"].get("cookie", "")
    address, (status, _, _) = yard.visit(f"{yard.origin()}/later", cookies)
    assert (address, status) == (f"{yard.origin()}/later", 200)


def test_the_jobs_own_address_leads_to_the_sign_in_and_back(yard: Yard, session: str):
    address, (status, _, _) = yard.visit(f"{yard.origin()}/a?b=1", {})
    assert (address.partition("?")[0], status) == (f"{yard.server.url}/login", 200)
    assert urllib.parse.parse_qs(urllib.parse.urlsplit(address).query) == {"next": [yard.entrance("/a?b=1")]}
    address, (status, _, _) = yard.visit(f"{yard.origin()}/a?b=1", {yard.netloc: session})
    assert (address, status) == (f"{yard.origin()}/a?b=1", 200)


def test_a_ticket_becomes_a_cookie_of_this_host_for_requests_of_its_own_pages(yard: Yard, session: str):
    status, location, cookies = redeem(yard, ticket_url(yard, session, "/x"))
    assert (status, location) == (302, f"{yard.origin()}/x")
    name, _, attributes = cookies[0].partition("=")
    assert (len(cookies), name) == (1, "yard_service")
    assert [part.strip() for part in attributes.split(";")[1:]] == [
        "Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Lax",
    ]  # fmt: skip
    assert session.partition("=")[2] not in cookies[0]


def test_a_ticket_works_once(yard: Yard, session: str):
    url = ticket_url(yard, session)
    status, _, cookies = redeem(yard, url)
    assert (status, len(cookies)) == (302, 1)
    again = redeem(yard, url, Cookie=cookies[0].partition(";")[0])
    assert again == (403, None, [])


@pytest.mark.parametrize("host", ["{id}-6006", f"{MISSING}-8888"])
def test_a_ticket_is_for_one_port_of_one_job(yard: Yard, session: str, host: str):
    url = ticket_url(yard, session)
    name = f"{host.replace('{id}', yard.job_id)}.{yard.host().partition('.')[2]}"
    assert redeem(yard, url, name) == (403, None, [])
    assert redeem(yard, url)[0] == 302


@pytest.mark.parametrize("ticket", ["", "x", "%00", "%C3%A9", "a" * 5000])
def test_guessed_tickets_are_refused(yard: Yard, ticket: str):
    assert redeem(yard, f"{yard.origin()}/.trainyard/enter?ticket={ticket}&next=/")[0] == 403


def test_a_ticket_is_for_those_who_may_use_the_job(yard: Yard):
    for name, expected in (("chi", 404), ("vic", 403)):
        status, headers, _ = yard.get(yard.entrance(), Cookie=yard.sign_in(name), Accept=PAGE)
        assert (status, headers["Location"]) == (expected, None)


@pytest.mark.parametrize(
    "place",
    ["//evil.example/a", "https://evil.example/", "/\\evil.example", "/a%0d%0aSet-Cookie:x=1", "evil", ""],
)
def test_no_redirect_leaves_the_jobs_host(yard: Yard, session: str, place: str):
    ticket = urllib.parse.parse_qs(urllib.parse.urlsplit(ticket_url(yard, session)).query)["ticket"][0]
    url = f"{yard.origin()}/.trainyard/enter?{urllib.parse.urlencode({'ticket': ticket})}&next={place}"
    status, location, _ = redeem(yard, url.replace("\\", "%5C"))
    assert status == 302
    assert location.startswith(f"{yard.origin()}/")
    assert "\n" not in location


def test_two_slashes_stay_a_path(yard: Yard, session: str):
    address, (status, _, body) = yard.visit(f"{yard.origin()}//evil.example/a", {yard.netloc: session})
    assert (address, status) == (f"{yard.origin()}//evil.example/a", 200)
    assert seen(body)["path"].endswith("/evil.example/a")  # http.server makes one slash of two
    status, headers, _ = yard.get(yard.entrance("//evil.example"), Cookie=session, Accept=PAGE)
    assert (status, urllib.parse.urlsplit(headers["Location"]).netloc) == (302, yard.host())


def test_a_browser_that_keeps_no_cookies_is_told_so_and_not_sent_in_circles(yard: Yard, session: str):
    class Forgetful(dict):
        def __setitem__(self, host: str, cookies: str) -> None:
            return

    cookies = Forgetful({yard.netloc: session})
    _, (status, _, body) = yard.visit(f"{yard.server.url}{yard.entrance()}", cookies)
    assert status == 403
    assert "keeps no cookies" in body.decode()


# What lies where


@pytest.mark.parametrize("who", [None, "ana", "chi"])
def test_the_control_planes_host_serves_nothing_of_a_job(yard: Yard, session: str, who: str | None):
    expected = {None: 401, "ana": 307, "chi": 404}[who]
    for rest in ("/", "/page", "/a/b?c=1"):
        status, headers, body = yard.get(yard.entrance(rest), getattr(yard, who) if who else None)
        assert status == expected
        assert headers["Location"] == (f"{yard.origin()}{rest}" if who == "ana" else None)
        assert b"path" not in body
    status, headers, _ = yard.get(yard.entrance("/a"), Accept=PAGE)
    assert (status, headers["Location"]) == (302, f"/login?next={yard.entrance('/a')}")
    with pytest.raises(InvalidStatus):
        yard.own_socket(yard.entrance("/", 6006), yard.ana)


@pytest.mark.parametrize(
    "path", ["/services/", "/services/x/8888/", f"/services/{MISSING}/8888/", "/services/{id}/9999/"]
)
def test_what_is_not_there_is_not_found(yard: Yard, path: str):
    assert yard.get(path.replace("{id}", yard.job_id), yard.ana)[0] == 404


@pytest.mark.parametrize(
    "path", ["/healthz", "/login", "/api/v1/whoami", "/static/css/base.css", "/services/x/1/"]
)
def test_a_jobs_host_serves_nothing_of_the_control_plane(yard: Yard, cookie: str, path: str):
    status, _, body = yard.ask(path, Cookie=cookie)
    assert (status, seen(body)["path"]) == (200, path)
    assert yard.ask(path, Cookie=yard.sign_in())[0] == 401


def test_paths_of_the_exchange_are_never_the_jobs(yard: Yard, cookie: str):
    for path in ("/.trainyard/enter", "/.trainyard/x", "/%2Etrainyard/x"):
        for method in ("POST", "HEAD", "GET"):
            status, _, body = yard.ask(path, None, method, Cookie=cookie)
            assert status in (403, 404)
            assert b'"path"' not in body
    assert yard.ask("//.trainyard/x", Cookie=cookie)[0] == 200  # another path, and the job's


@pytest.mark.parametrize(
    "name", ["evil.example", "{id}-8888.evil.example", "{id}-8888.localhost.evil.example", "x.localhost",
             "{id}.localhost", "{id}-8888.localhost."]
)  # fmt: skip
def test_unknown_hosts_are_refused(yard: Yard, cookie: str, name: str):
    host = f"{name.replace('{id}', yard.job_id)}:{yard.netloc.partition(':')[2]}"
    for path in ("/", "/login", "/api/v1/watch?topics=queue", yard.entrance()):
        status, _, body = yard.get(path, yard.ana, Host=host, Cookie=cookie)
        assert status == 400
        assert b'"headers"' not in body


@pytest.mark.parametrize(
    ("head", "statuses"),
    [
        ("GET / HTTP/1.1\r\nHost: {job}\r\nHost: {own}", {400}),
        ("GET / HTTP/1.1\r\nHost: {own}\r\nHost: {job}", {400}),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: {job}", {200, 400, 404}),
        ("GET http://{own}/api/v1/whoami HTTP/1.1\r\nHost: {job}", {200, 400, 404}),
        ("OPTIONS * HTTP/1.1\r\nHost: {job}", {400, 404}),
        ("GET / HTTP/1.1\r\nHost: {own}\r\nX-Forwarded-Host: {job}", {302}),
        ("GET / HTTP/1.0", {400, 426}),
    ],
)
def test_a_request_is_for_the_host_that_its_one_host_header_names(
    yard: Yard, cookie: str, head: str, statuses: set[int]
):
    head = head.format(job=yard.host(), own=yard.netloc)
    name, port = yard.netloc.split(":")
    with socket.create_connection((name, int(port)), timeout=patience(20)) as connection:
        connection.sendall(f"{head}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while data := connection.recv(65536):
            answer += data
    status = int(answer.split(b" ", 2)[1])
    assert status in statuses
    if status == 200:  # the pod is asked for a path, as ever
        assert seen(answer.partition(b"\r\n\r\n")[2])["path"].startswith("/")


def test_where_names_under_localhost_lead_elsewhere_the_page_says_what_to_set(yard: Yard, session: str):
    for accept in (PAGE, "*/*"):
        status, headers, body = yard.get(yard.entrance(), Host="yard.lan:8000", Cookie=session, Accept=accept)
        assert (status, headers["Location"]) == (409, None)
        assert "TRAINYARD_SERVICES_HOST" in body.decode()
    status, _, _ = yard.get(yard.entrance(), yard.chi, Host="yard.lan:8000")
    assert status == 404


# Cookies


def test_no_cookie_of_ours_reaches_the_job_and_its_own_do(yard: Yard, session: str, cookie: str):
    sent = f"{session}; {cookie}; __Host-yard_session=x; _xsrf=2"
    status, headers, body = yard.ask("/", Cookie=sent)
    assert (status, seen(body)["headers"]["cookie"]) == (200, "sessionid=its-own; _xsrf=2")
    assert headers.get_all("Set-Cookie") == ["sessionid=its-own; Path=/; HttpOnly"]


def test_a_cookie_of_one_port_opens_no_other(yard: Yard, session: str, cookie: str):
    assert yard.ask("/", Cookie=cookie)[0] == 200
    assert yard.ask("/", port=5555, Cookie=cookie)[0] == 401
    assert yard.get("/api/v1/whoami", Cookie=cookie)[0] == 401
    assert yard.get("/api/v1/whoami", Cookie=cookie.replace("yard_service", "yard_session"))[0] == 401
    assert yard.ask("/", Cookie=session)[0] == 401
    assert yard.ask("/", Cookie=session.replace("yard_session", "yard_service"))[0] == 401


def test_a_second_cookie_of_our_name_keeps_nobody_out(yard: Yard, cookie: str):
    assert yard.ask("/", Cookie=f"yard_service=evil; {cookie}; yard_service=")[0] == 200


def test_the_jobs_authorization_passes_beside_the_cookie_and_ours_never(yard: Yard, cookie: str):
    for sent, expected in (("token abc", "token abc"), ("Bearer of-the-job", "Bearer of-the-job"),
                           (f"Bearer {yard.ana}", None), (f"Bearer {yard.server.token}", None)):  # fmt: skip
        status, _, body = yard.ask("/", Cookie=cookie, Authorization=sent)
        assert (status, seen(body)["headers"].get("authorization")) == (200, expected)


# Other sites, and jobs as sites


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "{sibling}"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
def test_another_sites_page_does_nothing_with_the_cookies_of_either_host(
    yard: Yard, session: str, cookie: str, headers: dict[str, str]
):
    sent = {name: value.replace("{sibling}", yard.origin(6006)) for name, value in headers.items()}
    for method in ("GET", "POST"):
        assert yard.ask("/", None, method, b"" if method == "POST" else None, Cookie=cookie, **sent)[0] == 403
        for path in ("/api/v1/whoami", "/", yard.entrance(), "/api/v1/watch?topics=queue"):
            answer = yard.get(path, None, method, b"" if method == "POST" else None, Cookie=session, **sent)
            assert (answer[0], answer[1]["Access-Control-Allow-Origin"]) == (403, None)


def test_a_link_from_another_site_is_followed(yard: Yard, session: str, cookie: str):
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert yard.ask("/", Cookie=cookie, **link)[0] == 200
    assert yard.get("/jobs", Cookie=session, **link)[0] == 200
    assert yard.ask("/", None, "POST", b"", Cookie=cookie, **link)[0] == 403


def test_a_frame_is_not_led_to_the_sign_in(yard: Yard):
    assert yard.ask("/", Accept=PAGE, Sec_Fetch_Dest="iframe")[0] == 401


def test_websockets_are_for_the_jobs_own_pages(yard: Yard, session: str):
    cookie = yard.service_cookie(session, 5555)
    with yard.socket("/", port=5555, headers={"Cookie": cookie}, origin=yard.origin(5555)) as found:
        found.send("x")
        assert found.recv(10) == "x"
    for origin in (
        "https://evil.example",
        yard.origin(6006),
        yard.server.url.replace("127.0.0.1", "localhost"),
    ):
        with pytest.raises(InvalidStatus) as refusal:
            yard.socket("/", port=5555, headers={"Cookie": cookie}, origin=origin)
        assert refusal.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as refusal:
        yard.own_socket("/ws/live", None, headers={"Cookie": session}, origin=yard.origin(5555))
    assert refusal.value.response.status_code == 403


# The end of access


def test_access_ends_with_the_session(yard: Yard):
    member(yard.server, "ben", "member")
    session = yard.sign_in("ben")
    cookie = yard.service_cookie(session, 5555)
    with yard.socket("/", port=5555, headers={"Cookie": cookie}) as found:
        end_sessions(yard, "ben")
        with pytest.raises(ConnectionClosed, match="4401"):
            found.recv(20)
    wait_until(lambda: yard.ask("/page", port=5555, Cookie=cookie)[0] == 401, what="the end of access")
    _, (status, _, body) = yard.visit(f"{yard.origin(5555)}/page", {yard.host(5555): cookie})
    assert (status, b'name="password"' in body) == (200, True)


def end_sessions(yard: Yard, name: str) -> None:
    """A new password ends every session of a user, as the sign-out ends one."""
    fresh = {"password": PASSWORD[::-1]}
    status, answer = yard.server.call("POST", f"/api/v1/users/{name}/password", fresh)
    if status == 404:
        status, answer = yard.server.call("PATCH", f"/api/v1/users/{name}", fresh)
    assert status < 300, answer


def test_access_ends_with_the_role(yard: Yard):
    member(yard.server, "dan", "member")
    cookie = yard.service_cookie(yard.sign_in("dan"), 5555)
    with yard.socket("/", port=5555, headers={"Cookie": cookie}) as found:
        call(yard.server, "DELETE", "/api/v1/projects/team-a/members/dan")
        with pytest.raises(ConnectionClosed, match="4401"):
            found.recv(20)
    wait_until(lambda: yard.ask("/page", port=5555, Cookie=cookie)[0] == 404, what="the end of access")


# In a real browser


@pytest.mark.browser
def test_a_sign_in_leads_on_to_the_jobs_page(yard: Yard):
    """The policy of our pages lets no form lead to another host, and browsers hold redirects after it to that too."""
    browser_path = chromium()
    if browser_path is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{yard.origin()}/a?b=1")
        page.fill("[name=username]", "ana")
        page.fill("[name=password]", PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{yard.origin()}/a?b=1")
        assert json.loads(page.inner_text("body"))["path"] == "/a?b=1"
        browser.close()


@pytest.mark.browser
def test_a_jobs_page_is_a_page_like_any_other_and_cannot_act_as_the_user(yard: Yard, session: str):
    browser_path = chromium()
    if browser_path is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    name, _, value = session.partition("=")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        context = browser.new_context()
        context.add_cookies([{"name": name, "value": value, "url": yard.server.url, "sameSite": "Lax"}])
        page = context.new_page()
        page.goto(f"{yard.server.url}{yard.entrance('/page', 5555)}")
        page.wait_for_function("document.title != 'loading'")
        found, address = json.loads(page.title()), page.url
        page.reload()  # now under the service worker
        page.wait_for_function("document.title.startsWith('{')")
        page.goto(f"{yard.server.url}/jobs")
        is_signed_in = page.locator("#nav").count() == 1
        kept = [
            (each["name"], each["domain"]) for each in context.cookies() if each["name"].startswith("yard_s")
        ]
        browser.close()
    assert address == f"{yard.origin(5555)}/page"
    assert found == {
        "cookie": "mine=1", "storage": "yes", "worker": "worker", "socket": "hello", "whoami": "refused",
        "blind": "opaque", "live": "refused", "frame": "refused", "sibling": "refused", "siblingSocket": "refused",
        "origin": yard.origin(5555),
    }  # fmt: skip
    assert is_signed_in
    assert sorted(kept) == [
        ("yard_service", yard.host(5555).partition(":")[0]), ("yard_session", "127.0.0.1"),
    ]  # fmt: skip
