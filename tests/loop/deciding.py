"""A memory engine for a cluster whose own scheduler places pods that have no node; the test takes its decisions."""

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
    """An engine whose pods without a node wait until `bind`. `say` gives the reason why they wait; `evict`
    preempts a running pod."""

    def start(self, spec: PodSpec) -> None:
        if spec.node:
            super().start(spec)
        elif self.faults.start_refusal is not None:
            raise base.EngineRefused(*self.faults.start_refusal, is_passing=self.faults.is_passing)
        elif spec.name not in self._pods:
            waiting = PodReport(spec.name, base.STARTING, base.WAITING_FOR_NODE)
            self._pods[spec.name] = _Pod(spec, waiting)

    def waiting(self) -> list[str]:
        """Return the names of the pods that have no node."""
        return [name for name, pod in self._pods.items() if not pod.report.node]

    def spec_of(self, name: str) -> PodSpec:
        """Return the spec with which the pod was created."""
        spec = self._pods[name].spec
        assert spec is not None
        return spec

    def bind(self, name: str, node: str, group: str = "") -> None:
        """Place a pod on a node, as the cluster's scheduler does; it runs at once. `group`: the device group of a
        shared GPU."""
        self._change(
            name, state=base.RUNNING, reason="", node=node, device_group=group, started_at=self._clock()
        )

    def say(self, name: str, verdict: Verdict) -> None:
        """Set the reason, given by the cluster's scheduler, why a pod is not placed."""
        self._change(name, verdict=verdict)

    def evict(self, name: str, taken_by: str, *, is_gone: bool = False) -> None:
        """Preempt a pod for the workload `taken_by`, as the cluster's scheduler does. `is_gone`: it has also
        ended already."""
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
    """A plant whose cluster has a scheduler of its own, to which projects are written before every cycle unless
    `is_slow_to_sync`."""

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
