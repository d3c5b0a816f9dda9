"""The image `jupyter` on the local engine."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

from controlplane.config.service_tokens import HEADER
from controlplane.engines import base
from controlplane.engines.base import PodSpec
from controlplane.engines.variables import SERVICE_TOKEN
from tests.contract.harness import EngineCase, make_case
from tests.waiting import patience, wait_until
from workloads.jupyter import identity, serve

TOKEN = "a" * 64


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path)
    yield case
    case.close()


def status(case: EngineCase, spec: PodSpec, path: str, headers: dict[str, str]) -> int | None:
    address = "http://{}:{}".format(*case.report(spec).ports[8888])
    request = urllib.request.Request(address + path, headers=headers)
    answer: HTTPResponse | HTTPError
    try:
        with urllib.request.urlopen(request, timeout=patience(20)) as answer:
            return answer.status
    except HTTPError as answer:
        return answer.code
    except (URLError, OSError):
        return None


def test_it_has_the_names_that_the_control_plane_uses():
    assert (serve.TOKEN_VARIABLE, identity.TOKEN_HEADER.lower().encode()) == (SERVICE_TOKEN, HEADER)


@pytest.mark.slow  # starts JupyterLab
def test_it_answers_requests_with_the_service_token_only(case: EngineCase):
    spec = case.start(image="jupyter", ports=(8888,), kind_env={SERVICE_TOKEN: TOKEN})
    header = {identity.TOKEN_HEADER: TOKEN}
    wait_until(lambda: status(case, spec, "/lab", header) == 200, 60, "JupyterLab's page")
    assert status(case, spec, "/api/contents", header) == 200
    assert status(case, spec, "/api/contents", {}) == 403
    assert status(case, spec, "/api/contents", {identity.TOKEN_HEADER: "b" * 64}) == 403
    case.engine.stop(spec.name, 20)
    assert case.wait_end(spec, 30).reason == base.STOPPED


def test_without_a_port_it_says_what_to_do(case: EngineCase):
    spec = case.start(image="jupyter", kind_env={SERVICE_TOKEN: TOKEN})
    report = case.wait_end(spec, 60)
    assert (report.reason, report.exit_code) == (base.EXIT_CODE, 2)
    assert "--port 8888" in case.text(spec)
