"""An engine on a real API server with fake nodes, and further engines for the same installation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.engines.base import EngineUnreachable, PodReport, PodSpec, ProjectReport
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.engine import KubernetesEngine
from tests.contract.harness import PROJECT, EngineCase, kubernetes_settings
from tests.kube import KubeCluster
from tests.waiting import wait_until

REPORT = ProjectReport(PROJECT, 8000, None, 1000)


class Case(EngineCase):
    """An engine with settings of its own on the cluster, and further engines for the same installation
    (`others`)."""

    def __init__(self, kube: KubeCluster, node: str, state_dir: Path, **settings: Any) -> None:
        self.settings = {**kubernetes_settings(kube), "image_pull_policy": "", **settings}
        self.kube, self.node = kube, node
        self.others: list[KubernetesEngine] = []
        super().__init__(KubernetesEngine(self.settings, state_dir), state_dir, lambda seconds: None)
        self.namespace = f"{self.settings['namespace_prefix']}{PROJECT}"
        self.engine.sync_projects((REPORT,))

    def spec(self, *command: str, **fields: Any) -> PodSpec:
        return super().spec(*command, **{"node": self.node, **fields})

    def again(self, **more: Any) -> KubernetesEngine:
        """Return another engine with the same settings, as after a restart of the control plane. `more`: its
        further arguments."""
        engine = KubernetesEngine(self.settings, self.state_dir, **more)
        self.others.append(engine)
        return engine

    def pods_of(self, engine: KubernetesEngine) -> tuple[PodReport, ...]:
        """Wait until an engine has listed the cluster, and return its pods."""

        def pods() -> tuple[PodReport, ...] | None:
            try:
                return engine.pods()
            except EngineUnreachable:
                return None

        wait_until(lambda: pods() is not None, what="the first list")
        return engine.pods()

    def path(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}/{name}".rstrip("/")

    def found(self, kind: str = "pods") -> list[str]:
        """Return the names of the objects of `kind` that our engine created, as the API server has them."""
        items = self.kube.must("GET", self.path(kind))["items"]
        return [
            item["metadata"]["name"]
            for item in items
            if names.INSTALLATION in item["metadata"].get("labels", ())
        ]

    def stop_copying(self, spec: PodSpec) -> None:
        """Stop copying logs, and wait until the engine's thread does not write to the pod's file any more."""
        self.engine.copy_logs({})
        wait_until(lambda: not self.engine._copier.is_wanted(spec.name), what="the end of copying")

    def wait_reason(self, spec: PodSpec, reason: str) -> PodReport:
        def there() -> PodReport | None:
            report = self.report(spec)
            return report if report and report.reason == reason else None

        report = wait_until(there, 30, f"{spec.name} to say {reason}")
        assert report is not None
        return report

    def close(self) -> None:
        for engine in self.others:
            engine.close()
        super().close()
