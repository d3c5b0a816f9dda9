"""A memory engine whose cluster decides by itself where pods without a node go: the test plays its scheduler."""

from dataclasses import dataclass, field, replace
from typing import Any

from controlplane.engines import base
from controlplane.engines.base import PodReport, PodSpec, Verdict
from controlplane.engines.memory import MemoryEngine, _Pod
from controlplane.loop import project_sync
from controlplane.models import Cluster
from tests.engines import give_engine
from tests.loop.plant import Plant


class DecidingEngine(MemoryEngine):
    """Pods without a node wait until `bind`; `say` is why they do, `evict` takes a running one away."""

    def start(self, spec: PodSpec) -> None:
        if spec.node:
            super().start(spec)
        elif self.faults.start_refusal is not None:
            raise base.EngineRefused(*self.faults.start_refusal, is_passing=self.faults.is_passing)
        elif spec.name not in self._pods:
            waiting = PodReport(spec.name, base.STARTING, base.WAITING_FOR_NODE)
            self._pods[spec.name] = _Pod(spec, waiting)

    def waiting(self) -> list[str]:
        """Names of the pods that have no node."""
        return [name for name, pod in self._pods.items() if not pod.report.node]

    def spec_of(self, name: str) -> PodSpec:
        """What the pod was offered with."""
        spec = self._pods[name].spec
        assert spec is not None
        return spec

    def bind(self, name: str, node: str, group: str = "") -> None:
        """The cluster's scheduler places a pod, and it runs at once."""
        self._change(
            name, state=base.RUNNING, reason="", node=node, device_group=group, started_at=self._clock()
        )

    def say(self, name: str, verdict: Verdict) -> None:
        """The cluster's scheduler says why it does not place a pod."""
        self._change(name, verdict=verdict)

    def evict(self, name: str, taken_by: str, *, is_gone: bool = False) -> None:
        """The cluster's scheduler takes a pod's room; with `is_gone` it has ended before anybody looks."""
        fields: dict[str, Any] = {}
        if is_gone:
            fields = {"state": base.FAILED, "exit_code": 143, "is_proven_gone": True}
        self._change(
            name,
            reason=base.PREEMPTED,
            taken_by=taken_by,
            message="Pod was preempted by workload x.",
            **fields,
        )

    def _change(self, name: str, **fields: Any) -> None:
        with self._changed:
            self._pods[name].report = replace(self._pods[name].report, **fields)
            self._changed.notify_all()


@dataclass
class DecidingPlant(Plant):
    """A plant whose cluster decides by itself, and is told its projects before every cycle unless `is_slow_to_tell`."""

    engine: DecidingEngine = field(init=False)
    is_slow_to_sync: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        Cluster.objects.filter(pk=self.cluster.pk).update(scheduler="kai")
        self.cluster.refresh_from_db()

    def tick(self, seconds: float = 0.0) -> None:
        if not self.is_slow_to_sync:
            assert project_sync.sync_projects_once()
        super().tick(seconds)

    def restart_engine(self) -> None:
        self.engine = DecidingEngine(self.cluster.settings, clock=self.clock)
        give_engine(self.cluster, self.engine)
