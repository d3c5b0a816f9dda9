"""What pods print while no control plane is there, also where the cluster's clock is an hour off."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.engines.base import ProjectReport
from controlplane.engines.kubernetes.engine import KubernetesEngine
from controlplane.logstore.reader import read_page, tail
from tests.contract.harness import PROJECT, EngineCase, kubernetes_settings
from tests.kube import KubeCluster
from tests.kubernetes.proxy import fault_proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
LINES = 300


@pytest.mark.parametrize("ahead_hours", [0, 1])
def test_output_of_an_absence_is_kept_whole(kube_node: KubeCluster, tmp_path: Path, ahead_hours: int) -> None:
    settings = kubernetes_settings(kube_node)
    with fault_proxy(kube_node) as proxy:
        proxy.ahead = timedelta(hours=ahead_hours)
        first = KubernetesEngine(settings, tmp_path, access=proxy.access())
        first.sync_projects((ProjectReport(PROJECT, 8000, None, 1000),))
        case = EngineCase(first, tmp_path, lambda seconds: None)
        script = f"for i in $(seq {LINES}); do echo line $i; sleep 0.01; done"
        spec = case.start("bash", "-c", script)
        wait_until(lambda: read_page(spec.log_path).lines, 60, "the first lines")
        first.close()
        path = f"/api/v1/namespaces/{settings['namespace_prefix']}{PROJECT}/pods/{spec.name}"
        wait_until(lambda: kube_node.must("GET", path)["status"]["phase"] == "Succeeded", 60, "its end")
        case.engine = KubernetesEngine(settings, tmp_path, access=proxy.access())
        wait_until(
            lambda: case.engine.copy_logs(case.copied) or tail(spec.log_path, 1).complete, 60, "its log"
        )
        page = read_page(spec.log_path, 0, 100_000)
        report = case.wait_end(spec)
        case.close()
    assert not page.gaps
    assert [line.text for line in page.lines] == [f"line {n}" for n in range(1, LINES + 1)]
    told = page.lines[-1].time_ms / 1000 - time.time()
    assert abs(told - ahead_hours * 3600) < 60
    assert report.started_at is not None
    assert report.finished_at is not None
    assert timedelta() < report.finished_at - report.started_at < timedelta(minutes=2)
