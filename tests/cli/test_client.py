"""Retries that cannot do a thing twice, and a token that goes to its own server alone."""

import json
import os
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from controlplane.cli.client import BUSY_SECONDS, MAX_ATTEMPTS, Client
from controlplane.cli.errors import ApiError, CliError
from controlplane.http_client import retry_delay
from tests.cli.conftest import job
from tests.cli.scripted import Reply, page, problem


@pytest.fixture
def slept():
    return []


@pytest.fixture
def client(server, slept):
    with Client(server.url, "the-token", sleep=slept.append) as open_client:
        yield open_client


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_write_is_sent_again_with_the_same_key_after_the_wait_that_the_server_asked_for(
    server, client, slept, status
):
    busy = problem(status, "busy", "Later.", headers={"Retry-After": "7"})
    server.on("POST", "projects/team-a/jobs", busy, busy, Reply(201, {"id": "1"}))
    assert client.post("projects/team-a/jobs", {"name": "x"}) == {"id": "1"}
    keys = {asked.headers["Idempotency-Key"] for asked in server.asked}
    assert len(server.asked) == 3
    assert len(keys) == 1
    assert {str(asked.body) for asked in server.asked} == {"{'name': 'x'}"}
    assert slept == [7.0, 7.0]


def test_two_writes_have_two_keys(server, client):
    server.on("POST", "jobs/1/stop", {})
    client.post("jobs/1/stop")
    client.post("jobs/1/stop")
    assert len({asked.headers["Idempotency-Key"] for asked in server.asked}) == 2


def test_a_write_whose_answer_was_lost_is_sent_again_with_the_same_key(server, client):
    server.on("POST", "jobs/1/stop", Reply(is_cut=True), {"done": True})
    assert client.post("jobs/1/stop") == {"done": True}
    assert len({asked.headers["Idempotency-Key"] for asked in server.asked}) == 1


def test_a_server_that_keeps_cutting_is_unreachable(server, client):
    server.on("GET", "whoami", Reply(is_cut=True))
    with pytest.raises(CliError, match="cannot reach"):
        client.get("whoami")


def test_other_refusals_are_not_retried(server, client, slept):
    server.on("POST", "jobs/1/stop", problem(409, "final", "It has ended."))
    with pytest.raises(ApiError):
        client.post("jobs/1/stop")
    assert len(server.asked) == 1
    assert slept == []


def test_a_write_waits_for_as_long_as_the_lake_is_being_collected_and_says_so(server, slept):
    said: list[str] = []
    busy = problem(409, "in_use", "Content is being removed.", headers={"Retry-After": "30"})
    server.on("POST", "datasets/1/versions", *[busy] * 20, Reply(201, {"number": 2}))
    with Client(server.url, "the-token", sleep=slept.append, say=said.append) as client:
        assert client.post("datasets/1/versions", {}) == {"number": 2}
    assert len({asked.headers["Idempotency-Key"] for asked in server.asked}) == 1
    assert slept == [30.0] * 20
    assert said == ["Content is being removed. Waiting; it continues by itself."]


def test_a_write_waits_for_a_busy_lake_no_longer_than_its_limit(server, slept):
    server.on("POST", "datasets/1/versions", problem(409, "in_use", "Busy.", headers={"Retry-After": "30"}))
    with Client(server.url, "the-token", sleep=slept.append) as client, pytest.raises(ApiError):
        client.post("datasets/1/versions", {})
    assert sum(slept) == BUSY_SECONDS


def test_a_read_waits_while_a_pod_reads_the_volume_and_no_longer_than_its_limit(server, slept):
    said: list[str] = []
    waits = problem(409, "being_read", "A pod reads it.", headers={"Retry-After": "1"})
    server.on("GET", "volumes/1/files", *[waits] * 6, {"results": []})
    with Client(server.url, "the-token", sleep=slept.append, say=said.append) as client:
        assert client.get("volumes/1/files") == {"results": []}
        assert (slept, said) == ([1.0] * 6, ["A pod reads it. Waiting; it continues by itself."])
        server.on("GET", "volumes/2/files", problem(409, "being_read", "", headers={"Retry-After": "30"}))
        with pytest.raises(ApiError):
            client.get("volumes/2/files")
    assert sum(slept[6:]) == BUSY_SECONDS


def test_a_request_that_waits_long_says_for_what_and_until_when(server, slept):
    said: list[str] = []
    away = problem(503, "unreachable", "The lake is away.", headers={"Retry-After": "30"})
    server.on("POST", "datasets/1/versions", away, away, Reply(201, {"number": 2}))
    with Client(server.url, "the-token", sleep=slept.append, say=said.append) as client:
        assert client.post("datasets/1/versions", {}) == {"number": 2}
    assert said == [f"The lake is away. Next attempt in 30 s ({attempt} of 4)." for attempt in (2, 3)]


def test_what_an_operator_has_to_correct_is_refused_at_once(server, client, slept):
    wrong = problem(503, "not_trusted", "The lake's certificate is refused.", headers={"Retry-After": "30"})
    server.on("POST", "datasets/1/versions", wrong)
    with pytest.raises(ApiError, match="is refused"):
        client.post("datasets/1/versions", {})
    assert slept == []


def test_retries_end(server, client, slept):
    server.on("GET", "whoami", problem(429, "slow_down", "Too many."))
    with pytest.raises(ApiError):
        client.get("whoami")
    assert len(server.asked) == MAX_ATTEMPTS
    assert slept == sorted(slept)  # without Retry-After the waits grow
    assert slept[0] < slept[-1]


@pytest.mark.parametrize(
    ("header", "seconds"), [("0", 0.0), ("2.5", 2.5), ("9999", 30.0), ("-3", 0.0), ("soon", 1.0)]
)
def test_retry_after_in_seconds(header, seconds):
    assert retry_delay(header, 1) == seconds


def test_retry_after_as_a_date():
    in_ten = format_datetime(datetime.now(UTC) + timedelta(seconds=10), usegmt=True)
    assert 2 <= retry_delay(in_ten, 1) <= 10


def test_reads_have_no_key_and_everything_has_the_token(server, client):
    server.on("GET", "whoami", {})
    client.get("whoami")
    headers = server.asked[0].headers
    assert "Idempotency-Key" not in headers
    assert headers["Authorization"] == "Bearer the-token"


def test_pages_are_followed_on_our_own_server_whatever_the_link_says(server, client):
    elsewhere = "http://elsewhere.example/api/v1/jobs?cursor=two&limit=2"
    server.on("GET", "jobs", page(1, 2, next_url=elsewhere), page(3, 4))
    assert client.pages("jobs", {"state": None}, 3) == {"results": [1, 2, 3], "next": None, "previous": None}
    assert [asked.query for asked in server.asked] == [{"limit": "3"}, {"cursor": "two", "limit": "2"}]


def test_no_page_more_than_needed(server, client):
    link = f"{server.url}/api/v1/jobs?cursor=two"
    server.on("GET", "jobs", page(1, 2, next_url=link))
    assert client.pages("jobs", {}, 2)["next"] == link
    assert len(server.asked) == 1


def test_an_address_with_a_path_in_front(server):
    server.on(
        "GET", "/yard/api/v1/jobs", page(1, next_url=f"{server.url}/yard/api/v1/jobs?cursor=2"), page(2)
    )
    with Client(f"{server.url}/yard/", "") as client:
        assert client.pages("jobs", {}, 2)["results"] == [1, 2]


def test_redirects_are_not_followed(server, client):
    server.on("GET", "whoami", Reply(301, None, {"Location": "https://elsewhere.example/"}))
    with pytest.raises(CliError, match=r"redirects to https://elsewhere\.example/"):
        client.get("whoami")


@pytest.mark.parametrize("url", ["ftp://host", "host:8000", "http://", "http://host:99999"])
def test_addresses_that_are_none(url):
    with pytest.raises(CliError) as refused:
        Client(url, "")
    assert refused.value.exit_code == 2


def test_an_answer_that_never_comes_is_7():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, "", timeout=0.05) as client, pytest.raises(CliError) as refused:
            client.get("whoami")
    assert refused.value.exit_code == 7


def test_a_stored_token_is_not_sent_to_another_server(server, yard, settings, monkeypatch):
    monkeypatch.delenv("TRAINYARD_TOKEN")
    settings.parent.mkdir()
    settings.write_text(
        '{"current": "other", "contexts": {"other": {"url": "https://other.example", "token": "secret"}}}'
    )
    server.on("GET", "whoami", {"username": "x"})
    yard("whoami")
    assert "Authorization" not in server.asked[0].headers


def stored(settings, **contexts: dict[str, str]) -> None:
    settings.parent.mkdir()
    settings.write_text(json.dumps({"current": "other", "contexts": contexts}))


def test_a_stored_project_is_not_used_on_another_server(server, yard, settings, monkeypatch):
    monkeypatch.delenv("TRAINYARD_PROJECT")
    stored(settings, other={"url": "https://other.example", "token": "secret", "project": "theirs"})
    ran = yard("list", "jobs")
    assert ran.code == 2
    assert "which project?" in ran.err
    assert server.asked == []


def test_the_context_of_the_environments_server_is_the_one_in_use(server, yard, settings, monkeypatch):
    for name in ("TRAINYARD_PROJECT", "TRAINYARD_TOKEN"):
        monkeypatch.delenv(name)
    other = {"url": "https://other.example", "token": "secret", "project": "theirs"}
    stored(settings, other=other, here={"url": f"{server.url}/", "token": "ours", "project": "mine"})
    server.on("GET", "projects/mine/jobs", page())
    assert yard("list", "jobs").code == 0
    assert server.asked[0].headers["Authorization"] == "Bearer ours"


def test_a_project_chosen_for_the_environments_server_changes_no_other(server, yard, settings, monkeypatch):
    monkeypatch.delenv("TRAINYARD_PROJECT")
    other = {"url": "https://other.example", "token": "secret", "project": "theirs"}
    stored(settings, other=other)
    assert yard("config", "project", "mine").code == 0
    assert yard("config", "project").out == "mine\n"
    kept = json.loads(settings.read_text())
    assert (kept["current"], kept["contexts"]["other"]) == ("other", other)


def test_login_asks_for_a_token_keeps_it_for_the_owner_alone_and_uses_it(
    server, yard_process, settings, monkeypatch
):
    for name in ("TRAINYARD_URL", "TRAINYARD_TOKEN", "TRAINYARD_PROJECT"):
        monkeypatch.delenv(name)
    server.on("POST", "login", Reply(201, {"token": "fresh"}))
    server.on("GET", "whoami", {"username": "ana", "is_admin": False})
    server.on("GET", "projects/team-a/jobs", page(job()))
    ran = yard_process("login", server.url, "--username", "ana", "--password-stdin", input="pass word\n")
    assert ran.returncode == 0, ran.stderr
    assert server.requests("POST", "login")[0].body == {"username": "ana", "password": "pass word"}
    assert os.stat(settings).st_mode & 0o777 == 0o600
    assert "fresh" not in ran.stdout + ran.stderr
    assert yard_process("config", "project", "team-a").returncode == 0
    assert yard_process("list", "jobs").returncode == 0
    assert server.requests("GET", "projects/team-a/jobs")[0].headers["Authorization"] == "Bearer fresh"
    contexts = yard_process("config", "contexts")
    assert "fresh" not in contexts.stdout
    assert "team-a" in contexts.stdout
    assert yard_process("logout").returncode == 0
    assert "fresh" not in settings.read_text()


def test_a_config_file_that_cannot_be_written_is_named(server, yard, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    monkeypatch.setenv("TRAINYARD_CONFIG", str(link / "yard.json"))
    ran = yard("config", "project", "mine")
    assert (ran.code, ran.out) == (2, "")
    assert f"cannot write {link}/yard.json: " in ran.err


def test_a_wrong_password_is_4_and_nothing_is_stored(server, yard_process, settings):
    server.on("POST", "login", problem(401, "wrong_credentials", "The name or the password is wrong."))
    ran = yard_process("login", server.url, "--username", "ana", "--password-stdin", input="no\n")
    assert ran.returncode == 4
    assert ran.stderr == "yard: The name or the password is wrong. (wrong_credentials)\n"
    assert not settings.exists()


def test_nobody_to_ask_for_a_password(server, yard_process):
    ran = yard_process("login", server.url, input="")
    assert ran.returncode == 2
    assert "--token-stdin" in ran.stderr
