"""An engine without processes: pods start and stop at once, a given clock provides the time, faults are scripted.

For tests, benchmarks and replays of large clusters. A pod whose command is ["sleep", "N"] ends after N seconds;
others run until stopped. Its pods exist only in the process that holds the engine.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from controlplane.config.images import ADDED, BUILT_IN, Catalogue, load_catalogue
from controlplane.engines import base
from controlplane.engines.base import (
    Capabilities,
    DepartmentReport,
    EngineRefused,
    EngineUnreachable,
    NodeReport,
    PodReport,
    PodSpec,
    PodUsage,
    Process,
    ProjectReport,
    Shell,
    UsageReport,
)
from controlplane.engines.defaults import EngineDefaults
from controlplane.engines.images import command_line
from controlplane.engines.simulated import check_spec, simulated_nodes
from controlplane.engines.usage import Holder, device_usage
from controlplane.logstore.reader import LogPage, read_page
from controlplane.logstore.writer import STDOUT, LogWriter

Clock = Callable[[], datetime]
SIGTERM_EXIT_CODE = 143
SIGKILL_EXIT_CODE = 137
FOREVER_SECONDS = 10 * 365 * 86400


def wall_clock() -> datetime:
    return datetime.now(UTC)


class VirtualClock:
    """A clock for tests and replays, which advances only when `advance` is called."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def __call__(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


@dataclass(slots=True)
class Faults:
    """Faults that tests and benchmarks can set at any time.

    `loses_answers`: starts and stops take effect but raise EngineUnreachable. `start_refusal` (code, message):
    refuses every start, as temporary if `is_passing`. `start_waits` (code, message): keeps pods starting, for that
    reason. `project_refusal` (code, message): refuses syncing projects. `call_seconds`: real duration of starts,
    stops and forgets. `stop_delay_seconds`: how long pods take to end after a stop, at most the grace. `nodes_down`:
    names of nodes that are not ready. `foreign`: (node, device index) held by pods outside Trainyard.
    """

    is_unreachable: bool = False
    loses_answers: bool = False
    start_refusal: tuple[str, str] | None = None
    is_passing: bool = False
    call_seconds: float = 0.0
    stop_delay_seconds: float = 0.0
    nodes_down: frozenset[str] = frozenset()
    foreign: frozenset[tuple[str, int]] = frozenset()
    project_refusal: tuple[str, str] | None = None
    start_waits: tuple[str, str] | None = None


@dataclass(slots=True)
class _Pod:
    spec: PodSpec | None
    report: PodReport
    ends_at: datetime | None = None
    ending: tuple[int, str, str] = (0, base.COMPLETED, "")
    utilization: float = 0.0
    memory_used_mib: int = 0


class MemoryEngine(EngineDefaults):
    """An engine whose pods are records in this process. Thread-safe."""

    capabilities: Capabilities = frozenset(
        {base.USAGE, base.FRACTIONS, base.WRITES_LOG_STORE, base.HAS_CATALOGUE, base.MEMBERSHIP}
    )

    def __init__(
        self, settings: Mapping[str, Any], clock: Clock = wall_clock, catalogue: Catalogue | None = None
    ) -> None:
        self.faults = Faults()
        # What the last `sync_projects` received.
        self.projects: tuple[ProjectReport, ...] = ()
        self.departments: tuple[DepartmentReport, ...] = ()
        # By pod: the last membership that it received.
        self.memberships: dict[str, str] = {}
        # By pod: the report that `exchange` returns; set by tests and replays.
        self.said: dict[str, base.MemberReport] = {}
        self._nodes = simulated_nodes(settings["nodes"])
        self._clock = clock
        self._catalogue = catalogue or load_catalogue(BUILT_IN)
        self._pods: dict[str, _Pod] = {}
        self._changed = threading.Condition(threading.RLock())

    def nodes(self) -> tuple[NodeReport, ...]:
        self._check_reachable()
        return tuple(self._node_now(node) for node in self._nodes)

    def start(self, spec: PodSpec) -> None:
        self._take_time()
        if self.faults.start_refusal is not None:
            raise EngineRefused(*self.faults.start_refusal, is_passing=self.faults.is_passing)
        check_spec(spec, self._nodes)
        command = command_line(self._catalogue, spec)
        with self._changed:
            if spec.name not in self._pods:
                now = self._clock()
                pod = _Pod(spec, PodReport(spec.name, base.RUNNING, started_at=now))
                seconds = _sleep_seconds(command)
                pod.ends_at = None if seconds is None else now + timedelta(seconds=seconds)
                self._pods[spec.name] = pod
                self._changed.notify_all()
        self._lose_answer()

    def stop(self, pod_name: str, grace_seconds: int, project: str = "") -> None:
        self._take_time()
        base.check_pod_name(pod_name)
        with self._changed:
            pod = self._pods.setdefault(pod_name, _Pod(None, PodReport(pod_name, base.STARTING)))
            self._settle_pod(pod)
            if pod.report.state not in base.FINAL_STATES:
                self._begin_end(pod, grace_seconds)
                self._settle_pod(pod)
        self._lose_answer()

    def pods(self) -> tuple[PodReport, ...]:
        self._check_reachable()
        with self._changed:
            self._settle()
            return tuple(self._report_now(pod) for pod in self._pods.values())

    def find(self, pod_name: str, project: str) -> PodReport | None:
        return next((report for report in MemoryEngine.pods(self) if report.name == pod_name), None)

    def forget(self, pod_name: str) -> None:
        self._take_time()
        with self._changed:
            self._settle()
            pod = self._pods.get(pod_name)
            if pod is not None and not pod.report.is_proven_gone:
                raise EngineRefused(base.POD_NOT_GONE, f"Pod {pod_name} is not gone yet; stop it first.")
            self._pods.pop(pod_name, None)

    def forget_job(self, job_id: str) -> None:
        self._check_reachable()

    def read_logs(self, pod_name: str, offset: int, limit: int) -> LogPage:
        self._check_reachable()
        pod = self._pods.get(pod_name)
        if pod is None or pod.spec is None:
            raise EngineRefused(base.NO_SUCH_POD, f"There is no pod {pod_name!r}.")
        return read_page(pod.spec.log_path, offset, limit)

    def usage(self) -> tuple[UsageReport, ...]:
        self._check_reachable()
        with self._changed:
            self._settle()
            holders = self._holders()
        return tuple(
            device_usage(node.name, device.index, holders.get((node.name, device.index), ()))
            for node in self._nodes
            for device in node.devices
        )

    def open_shell(self, pod_name: str, columns: int, rows: int) -> Shell:
        raise EngineRefused(base.NOT_SUPPORTED, "Pods of the memory engine have no shell.")

    def run_command(self, pod_name: str, command: Sequence[str]) -> Process:
        raise EngineRefused(base.NOT_SUPPORTED, "Pods of the memory engine run no commands.")

    def open_port(self, pod_name: str, port: int) -> socket.socket:
        raise EngineRefused(base.NOT_SUPPORTED, "Pods of the memory engine have no ports.")

    def sync_projects(
        self, projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport] = ()
    ) -> None:
        self._check_reachable()
        self.projects, self.departments = tuple(projects), tuple(departments)
        if self.faults.project_refusal is not None:
            raise EngineRefused(*self.faults.project_refusal)

    def exchange(self, pod_name: str, membership: str) -> base.MemberReport:
        self._check_reachable()
        if membership:
            self.memberships[pod_name] = membership
        return self.said.get(pod_name, base.MemberReport())

    def wait_for_change(self, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait(timeout_seconds)

    # Methods by which tests, benchmarks and replays control pods.

    def finish(self, pod_name: str, exit_code: int = 0, reason: str = "", message: str = "") -> None:
        """End a running pod at the clock's present time. `reason` "": COMPLETED for exit code 0, else EXIT_CODE.
        Raise KeyError for an unknown pod."""
        with self._changed:
            pod = self._pods[pod_name]
            own_reason = base.COMPLETED if exit_code == 0 else base.EXIT_CODE
            pod.ends_at, pod.ending = self._clock(), (exit_code, reason or own_reason, message)
            self._settle()

    def lose(self, pod_name: str) -> None:
        """Remove a pod from the reports, as if it was deleted outside Trainyard. Raise KeyError for an unknown pod."""
        with self._changed:
            del self._pods[pod_name]
            self._changed.notify_all()

    def set_usage(self, pod_name: str, utilization: float, memory_used_mib: int) -> None:
        """Set what `usage` reports of a pod. `utilization`: 0 to 1 of its share. Raise KeyError for an unknown pod."""
        pod = self._pods[pod_name]
        pod.utilization, pod.memory_used_mib = utilization, memory_used_mib

    def print_line(self, pod_name: str, text: str) -> None:
        """Append a line to the pod's log; none if the pod was stopped before its start. Raise KeyError for an unknown
        pod."""
        spec = self._pods[pod_name].spec
        if spec is not None:
            writer = LogWriter(spec.log_path)
            writer.feed(STDOUT, text.encode() + b"\n")
            writer.close()

    def _node_now(self, node: NodeReport) -> NodeReport:
        foreign = self.faults.foreign
        devices = tuple(replace(d, is_foreign=(node.name, d.index) in foreign) for d in node.devices)
        is_down = node.name in self.faults.nodes_down
        message = "The memory engine plays it down." if is_down else ""
        return replace(node, devices=devices, is_ready=not is_down, message=message)

    def _report_now(self, pod: _Pod) -> PodReport:
        waits = self.faults.start_waits
        if waits is None or pod.report.state != base.RUNNING:
            return pod.report
        return replace(pod.report, state=base.STARTING, reason=waits[0], message=waits[1], started_at=None)

    def _take_time(self) -> None:
        self._check_reachable()
        if self.faults.call_seconds:
            time.sleep(self.faults.call_seconds)

    def _check_reachable(self) -> None:
        if self.faults.is_unreachable:
            raise EngineUnreachable("The memory engine plays unreachable.")

    def _lose_answer(self) -> None:
        if self.faults.loses_answers:
            raise EngineUnreachable("The answer was lost.")

    def _begin_end(self, pod: _Pod, grace_seconds: int) -> None:
        delay = self.faults.stop_delay_seconds if pod.spec is not None else 0.0
        exit_code = SIGKILL_EXIT_CODE if delay > grace_seconds else SIGTERM_EXIT_CODE
        ends_at = self._clock() + timedelta(seconds=min(delay, grace_seconds))
        if pod.ends_at is None or ends_at <= pod.ends_at:
            pod.ends_at, pod.ending = ends_at, (exit_code, base.STOPPED, "Stopped.")

    def _settle(self) -> None:
        for pod in self._pods.values():
            self._settle_pod(pod)

    def _settle_pod(self, pod: _Pod) -> None:
        is_over = pod.report.state in base.FINAL_STATES
        if not is_over and pod.ends_at is not None and pod.ends_at <= self._clock():
            self._end(pod, pod.ends_at)

    def _end(self, pod: _Pod, at: datetime) -> None:
        exit_code, reason, message = pod.ending
        state = base.SUCCEEDED if exit_code == 0 else base.FAILED
        pod.report = replace(
            pod.report,
            state=state,
            reason=reason,
            message=message,
            exit_code=exit_code if pod.spec is not None else None,
            finished_at=at,
            is_proven_gone=True,
        )
        if pod.spec is not None and pod.spec.log_path:
            writer = LogWriter(pod.spec.log_path)
            writer.end(f"exit {exit_code}")
            writer.close()
        self._changed.notify_all()

    def _holders(self) -> Mapping[tuple[str, int], list[Holder]]:
        """Return the running pods on each device, by (node, device index)."""
        found: dict[tuple[str, int], list[Holder]] = defaultdict(list)
        for name, pod in self._pods.items():
            if pod.spec is None or pod.report.state != base.RUNNING:
                continue
            usage = PodUsage(name, pod.utilization, pod.memory_used_mib)
            for share in pod.spec.devices:
                found[pod.spec.node, share.index].append((usage, share.milli_gpus, pod.memory_used_mib))
        return found


def shared_engine(settings: Mapping[str, Any], state_dir: Path) -> MemoryEngine:
    """Return the engine for these settings and this `state_dir`; every call in this process returns the same one."""
    return _shared_engine(json.dumps(settings, sort_keys=True), str(state_dir))


@cache
def _shared_engine(settings_json: str, state_dir: str) -> MemoryEngine:
    catalogue = load_catalogue(BUILT_IN, Path(state_dir) / ADDED)
    return MemoryEngine(json.loads(settings_json), catalogue=catalogue)


def _sleep_seconds(command: tuple[str, ...]) -> float | None:
    if len(command) != 2 or command[0] != "sleep":
        return None
    try:
        seconds = float(command[1])
    except ValueError:
        return None
    return seconds if 0 <= seconds <= FOREVER_SECONDS else None
