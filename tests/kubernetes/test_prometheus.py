"""Debian's Prometheus scrapes a small exporter that serves DCGM's text format; we read it as the engine does."""

import shutil
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controlplane.engines.base import DeviceReport, DeviceShare, EngineUnreachable, NodeReport
from controlplane.engines.kubernetes.dcgm import Holding, read_gpus, usage_of
from controlplane.engines.kubernetes.prometheus import prometheus_at
from tests.servers import free_port
from tests.serving import serving
from tests.waiting import patience, wait_until

EXPOSED = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{{one}}} 87
DCGM_FI_DEV_GPU_UTIL{{{two}}} 0
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{{{one}}} 30211
DCGM_FI_DEV_FB_USED{{{two}}} 4
"""
ONE = (
    'gpu="0",UUID="GPU-a1",device="nvidia0",modelName="NVIDIA A100",Hostname="dgx1-1",'
    'container="main",namespace="yard-team-a",pod="job-1-0"'
)
TWO = (
    'gpu="1",UUID="GPU-b2",device="nvidia1",modelName="NVIDIA A100",Hostname="dgx1-1",'
    'container="",namespace="",pod=""'
)
# as an operator's ServiceMonitor makes it: the target has a namespace and a pod of its own
TARGET_LABELS = "{namespace: gpu-operator, pod: nvidia-dcgm-exporter-9x8qz}"
CONFIG = """\
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: dcgm
    static_configs: [{{targets: ["127.0.0.1:{exporter}"], labels: {labels}}}]
"""


class _Exporter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = EXPOSED.format(one=ONE, two=TWO).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing: every scrape would be a line."""


@pytest.fixture
def exporter() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Exporter) as server, serving(server):
        yield server.server_port


@pytest.fixture(params=["{}", TARGET_LABELS], ids=["labels-as-they-are", "labels-of-the-target"])
def prometheus(request: pytest.FixtureRequest, exporter: int, tmp_path: Path) -> Iterator[str]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus on this machine: apt-get install prometheus")
    config, port = tmp_path / "prometheus.yml", free_port()
    config.write_text(CONFIG.format(exporter=exporter, labels=request.param))
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data"]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.wait(patience(20))


def test_what_an_exporter_says_reaches_devices_and_pods(prometheus: str):
    def seen():
        try:
            gpus = read_gpus(prometheus_at(prometheus))
        except EngineUnreachable:
            return None  # it is starting
        return gpus if len(gpus) == 2 and all(gpu.utilization is not None for gpu in gpus) else None

    gpus = wait_until(seen, timeout=30, what="both GPUs' series")
    devices = tuple(DeviceReport(index, f"dgx1-1/{index}", "A100", 40960) for index in range(2))
    node = NodeReport("dgx1-1", "default", devices, 64_000, 512_000, True)
    holding = Holding("job-1-0", ("yard-team-a", "job-1-0"), "dgx1-1", (DeviceShare(1, 1000, 40960),))
    idle, busy = usage_of([node], [holding], gpus)
    assert (idle.utilization, idle.memory_used_mib, idle.pods) == (0.0, 4, ())
    assert (busy.utilization, busy.memory_used_mib) == (0.87, 30211)
    assert [(pod.pod_name, pod.utilization) for pod in busy.pods] == [("job-1-0", 0.87)]


def test_a_prometheus_that_is_not_there_is_said():
    with pytest.raises(EngineUnreachable, match="does not answer"):
        read_gpus(prometheus_at(f"http://127.0.0.1:{free_port()}"))


def test_a_server_that_is_no_prometheus_is_said(exporter: int):
    with pytest.raises(EngineUnreachable, match="not Prometheus"):
        read_gpus(prometheus_at(f"http://127.0.0.1:{exporter}"))
