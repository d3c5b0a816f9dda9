"""The engines under test of the contract suite: how to create each, and commands that end in certain ways on it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.engines.base import (
    FINAL_STATES,
    RUNNING,
    DeviceShare,
    Engine,
    EngineRefused,
    PodReport,
    PodSpec,
    ProjectReport,
    pod_name,
)
from controlplane.engines.local.engine import LocalEngine
from controlplane.engines.memory import MemoryEngine, VirtualClock
from controlplane.engines.registry import open_engine
from tests.kube import KubeCluster
from tests.kubernetes.chart import engine_kubeconfig
from tests.waiting import wait_until
from tools.kube.parts import IMAGE

PROJECT = "team-a"

SETTINGS = {
    "nodes": {
        "node-a": {"devices": 8, "memory_mib": 32768, "pool": "train"},
        "node-b": {"devices": 2, "memory_mib": 16384},
    }
}


@dataclass
class EngineCase:
    """One engine under test. `advance` lets a number of seconds pass; `copied`: the log paths that it copies, by
    pod."""

    engine: Engine
    state_dir: Path
    advance: Callable[[float], None]
    logs_dir: Path = field(init=False)
    copied: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.logs_dir = self.state_dir / "logs"

    def spec(self, *command: str, rank: int = 0, job_id: str | None = None, **fields: Any) -> PodSpec:
        job_id = job_id or str(uuid.uuid4())
        attempt = fields.pop("attempt", 1)
        defaults: dict[str, Any] = {
            "node": "node-a",
            "devices": (DeviceShare(0, 1000, 32768),),
            "milli_cpus": 10,
            "memory_mib": 128,
            "log_path": str(self.logs_dir / job_id / f"{attempt}-{rank}.log"),
        }
        name = pod_name(job_id, attempt, rank)
        return PodSpec(
            name, job_id, "hyper1", PROJECT, attempt, rank, command=command, **{**defaults, **fields}
        )

    def report(self, spec: PodSpec) -> PodReport | None:
        return next((report for report in self.engine.pods() if report.name == spec.name), None)

    def start(self, *command: str, **fields: Any) -> PodSpec:
        spec = self.spec(*command, **fields)
        self.engine.start(spec)
        self.copied[spec.name] = spec.log_path
        self.engine.copy_logs(self.copied)
        return spec

    def wait_running(self, spec: PodSpec) -> PodReport:
        def running() -> PodReport | None:
            report = self.report(spec)
            return report if report and report.state == RUNNING else None

        report = wait_until(running, 60, f"the start of {spec.name}")
        assert report is not None
        return report

    def wait_end(self, spec: PodSpec, timeout: float = 60.0) -> PodReport:
        def ended() -> PodReport | None:
            self.advance(0.25)
            report = self.report(spec)
            return report if report and report.state in FINAL_STATES and report.is_proven_gone else None

        report = wait_until(ended, timeout, f"the end of {spec.name}")
        assert report is not None
        return report

    def text(self, spec: PodSpec) -> str:
        """Return all that the pod has printed, as one text."""
        lines, page = [], self.engine.read_logs(spec.name, 0, 100_000)
        while page.lines:
            lines += page.lines
            page = self.engine.read_logs(spec.name, page.next_offset, 100_000)
        return "".join(line.text + ("" if line.is_partial else "\n") for line in lines)

    def surely(self, order: Callable[..., None], *arguments: object) -> None:
        """Call a method of the engine until it does not ask to try again later, as the loop does; at most 60 s."""

        def is_done() -> bool:
            try:
                order(*arguments)
            except EngineRefused as refusal:
                if not refusal.is_passing:
                    raise
                return False
            return True

        wait_until(is_done, 60, f"{order.__name__} of {arguments[0]}")

    def close(self) -> None:
        for report in self.engine.pods():
            self.surely(self.engine.stop, report.name, 0)
        wait_until(lambda: all(report.is_proven_gone for report in self.engine.pods()), 60, "all pods gone")
        for report in self.engine.pods():
            self.surely(self.engine.forget, report.name)
        self.engine.forget_project(PROJECT)
        self.engine.close()


def kubernetes_settings(kube: KubeCluster) -> dict[str, Any]:
    """Return engine settings whose names of pods and namespaces no other test uses."""
    name = uuid.uuid4().hex[:6]
    return {
        "installation": f"contract-{name}",
        "namespace_prefix": f"c{name}-",
        "default_image": IMAGE,
        "image_pull_policy": "Never",
        "credentials": {"kubeconfig": engine_kubeconfig(kube)},  # with the chart's rights and no more
    }


def make_case(kind: str, state_dir: Path, kube: KubeCluster | None = None) -> EngineCase:
    if kube is not None:
        case = EngineCase(
            open_engine(kind, kubernetes_settings(kube), state_dir), state_dir, lambda seconds: None
        )
        case.engine.sync_projects((ProjectReport(PROJECT, 10_000, None, 1000),))
        return case
    if kind == "memory":
        clock = VirtualClock()
        return EngineCase(MemoryEngine(SETTINGS, clock), state_dir, clock.advance)
    return EngineCase(LocalEngine(SETTINGS, state_dir), state_dir, lambda seconds: None)
