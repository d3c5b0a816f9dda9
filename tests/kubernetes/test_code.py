"""A job's code in its pods on a real node: downloaded at every attempt by their own token, or an end with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import CodeSource
from datasets.code_store import ProjectCode
from tests.code_server import TOKEN, code_server, keep
from tests.contract.harness import EngineCase, make_case
from tests.kube import KubeCluster

FILES = {"train.py": b"import lib.util\nprint(lib.util.LR)\n", "lib/util.py": b"LR = 0.1\n"}


@pytest.fixture
def case(kube_node: KubeCluster, tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("kubernetes", tmp_path, kube_node)
    yield case
    case.close()


def test_code_is_the_working_directory_of_every_pod_of_every_attempt(
    case: EngineCase, kube_node: KubeCluster, tmp_path: Path
):
    digest = keep(tmp_path / "code", 7, FILES)
    with code_server(ProjectCode(tmp_path / "code", 7), kube_node.host_address) as url:
        code = CodeSource(digest, 7, f"{url}/{digest}", TOKEN)
        wrong = CodeSource(digest, 7, f"{url}/{digest}", "another")
        fields = {"code": code, "devices": (), "world_size": 2, "min_pods": 2}
        first = case.start("python", "train.py", **fields)
        others = [
            case.start("python", "train.py", job_id=first.job_id, rank=1, **fields),
            case.start("python", "train.py", job_id=first.job_id, attempt=2, code=code, devices=()),
        ]
        refused = case.start("python", "train.py", code=wrong, devices=())
        for spec in (first, *others):
            assert case.wait_end(spec, 120).state == base.SUCCEEDED, case.text(spec)
            assert case.text(spec) == "0.1\n"
        report = case.wait_end(refused, 120)
    assert (report.state, report.reason) == (base.FAILED, base.CODE_MISSING)
    assert "no code for this attempt" in report.message
