"""Bodies too large for memory over real sockets: who may send them is asked before they are received, and how much."""

import json
from pathlib import Path
from unittest.mock import ANY

import pytest
from django.conf import settings as django_settings

from controlplane.http import upload_bridge
from datasets.actions.code import begin_upload
from tests.cast import Cast
from tests.code_trees import archive, entries_of, listed, make_tree
from tests.live.server import Server
from tests.live.test_server import bearer, cookie

pytestmark = pytest.mark.django_db(transaction=True)
LARGE = bytes(range(256)) * (3 << 12)  # 3 MiB, more than any other request may have
FILES = {"large.bin": LARGE}
CODE = "/api/v1/projects/team-a/code"
TAR = {"Content-Type": "application/x-tar"}


@pytest.fixture(autouse=True)
def _store(settings: django_settings, tmp_path: Path) -> None:
    settings.STATE_DIR = tmp_path


def begun(cast: Cast) -> str:
    return f"{CODE}/{begin_upload(cast.project, entries_of(FILES))[0]}/content"


def answer(server: Server, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict]:
    response = server.request(method, path, body, headers)
    return response.status, json.loads(response.read())


def test_a_file_of_more_than_a_body_in_memory_is_received(server: Server, cast: Cast):
    path = begun(cast)
    status, left = answer(server, "PUT", path, archive(LARGE), {**bearer(cast, "ben"), **TAR})
    assert (status, left["missing"]) == (200, [])


def test_a_list_of_files_may_be_longer_than_other_bodies(server: Server, cast: Cast):
    files = listed({f"{'n' * 200}-{number}": b"" for number in range(6000)})
    body = json.dumps({"files": files}).encode()
    assert len(body) > 1 << 20
    headers = {**bearer(cast, "ben"), "Content-Type": "application/json"}
    status, begun = answer(server, "POST", CODE, body, headers)
    assert (status, len(begun["missing"])) == (200, 1)


@pytest.mark.parametrize(("person", "status"), [("vera", 403), ("chi", 404)])
def test_nobody_else_sends_a_byte(server: Server, cast: Cast, person: str, status: int):
    path = begun(cast)
    announced = {**bearer(cast, person), **TAR, "Content-Length": "3145728"}
    assert answer(server, "PUT", path, b"", announced)[0] == status
    assert answer(server, "PUT", path, b"", {**TAR, "Content-Length": "3145728"})[0] == 401


def test_files_that_another_request_stored_meanwhile_are_received_again(server: Server, cast: Cast):
    """As of two submits of one directory at once, or of one whose first answer was lost with the server."""
    path, headers = begun(cast), {**bearer(cast, "ben"), **TAR}
    for _ in range(2):
        assert answer(server, "PUT", path, archive(LARGE), headers) == (200, {"tree": ANY, "missing": []})


def test_no_more_is_received_than_the_tree_has(server: Server, cast: Cast):
    path, headers = begun(cast), {**bearer(cast, "ben"), **TAR}
    announced = {**headers, "Content-Length": str(1 << 40)}
    refused = answer(server, "PUT", path, b"", announced)[1]
    assert (refused["code"], refused["detail"]) == ("body_too_large", "Send at most 3.1 MiB here.")


@pytest.mark.parametrize(("person", "status"), [("ben", 200), ("vera", 403), ("chi", 404)])
def test_a_small_body_is_received_without_a_file(
    server: Server, cast: Cast, monkeypatch: pytest.MonkeyPatch, person: str, status: int
):
    small = {"small.py": b"print(1)\n"}
    tree = begin_upload(cast.project, entries_of(small))[0]
    monkeypatch.setattr(upload_bridge, "_open_file", None)
    headers = {**bearer(cast, person), **TAR}
    body = archive(*small.values())
    assert len(body) <= upload_bridge.SMALL_BYTES
    assert answer(server, "PUT", f"{CODE}/{tree}/content", body, headers)[0] == status


def test_a_session_needs_its_csrf_token(server: Server, cast: Cast):
    path = begun(cast)
    headers = {**cookie(cast.ben)[0], **TAR}
    assert answer(server, "PUT", path, archive(LARGE), headers)[0] == 403
    key = "c" * 32
    headers = {"Cookie": f"{headers['Cookie']}; yard_csrf={key}", "X-CSRFToken": key, **TAR}
    assert answer(server, "PUT", path, archive(LARGE), headers)[0] == 200


def test_an_archive_is_downloaded(server: Server, cast: Cast):
    tree = make_tree(cast.project, FILES)
    response = server.request("GET", f"{CODE}/{tree}/archive", headers=bearer(cast, "vera"))
    assert len(response.read()) > len(LARGE)
