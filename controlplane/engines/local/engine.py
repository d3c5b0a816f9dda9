"""The local engine: pods are processes of this machine, and the state directory holds all of the engine's state.

Each pod runs under its own shim (shim.py), which outlives this process; every process that opens the same state
directory can list, stop and forget the same pods.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlplane.config.images import ADDED, BUILT_IN, Image, load_catalogue
from controlplane.config.work_directories import checkpoint_directory, job_directory, work_directory
from controlplane.engines import base
from controlplane.engines.base import Capabilities, EngineRefused, NodeReport, PodReport, PodSpec, UsageReport
from controlplane.engines.defaults import EngineDefaults
from controlplane.engines.images import command_line
from controlplane.engines.local import reports
from controlplane.engines.local.command import LocalProcess
from controlplane.engines.local.environment import (
    copy_files,
    device_variables,
    expand,
    pod_environment,
    prepare_library,
)
from controlplane.engines.local.gauges import Gauges
from controlplane.engines.local.inventory import NvmlInventory, has_real_gpus, open_inventory
from controlplane.engines.local.mpi import prepare_launch
from controlplane.engines.local.ports import lease_ports, release_ports
from controlplane.engines.local.preloading import ForkServers, recipe_for
from controlplane.engines.local.records import ELASTIC, PodDir, Prepared
from controlplane.engines.local.shell import LocalShell
from controlplane.engines.local.shim_start import ShimStarter, is_readable
from controlplane.engines.local.spare_code import SpareCode
from controlplane.engines.simulated import check_spec
from controlplane.logstore.reader import LogPage, read_page

# The most bytes of one pod's log, unless the cluster's settings give another limit: one job must not fill the
# disk of all.
LOG_MOST_BYTES = 1 << 30
# The command of a pod that only holds devices for ranks which its launcher starts.
IDLE = ("sleep", "infinity")
# The declared port under which the launcher's pod leases a host port, where rank 0 of a torch program listens.
RANK_0_PORT = 29500
CONNECT_SECONDS = 5.0
# If a pod still runs this long after its grace period, its shim does not respond.
OVERDUE_SECONDS = 5.0


class LocalEngine(EngineDefaults):
    """The engine whose pods are processes of this machine. All state is in `state_dir`; memory holds only caches.
    Thread-safe."""

    capabilities: Capabilities = frozenset(
        {
            base.SHELL,
            base.USAGE,
            base.FRACTIONS,
            base.WRITES_LOG_STORE,
            base.REACHES_PORTS,
            base.HAS_CATALOGUE,
            base.MEMBERSHIP,
        }
    )

    def __init__(self, settings: Mapping[str, Any], state_dir: Path) -> None:
        self._inventory = open_inventory(settings)
        self._state_dir = state_dir.absolute()
        self._pods_dir = self._state_dir / "pods"
        self._ports_dir = self._state_dir / "ports"
        self._ended_dir = self._state_dir / "ended"
        self._pods_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._wakeup = self._pods_dir / ".wakeup"
        self._log_most_bytes = int(settings.get("log_most_bytes", LOG_MOST_BYTES))
        self._final: dict[str, PodReport] = {}
        self._gauges = Gauges()
        self._shims = ShimStarter()
        self._spare_code = SpareCode(self._state_dir)
        self._fork_servers = ForkServers(self._pods_dir / ".fork-server.err")
        # For an engine that is dropped without `close`.
        weakref.finalize(self, self._shims.close)
        weakref.finalize(self, self._fork_servers.close)

    def close(self) -> None:
        """End the spare shim and the fork server, which make starts faster. Pods continue to run."""
        self._shims.close()
        self._fork_servers.close()

    def nodes(self) -> tuple[NodeReport, ...]:
        return self._inventory.nodes()

    def start(self, spec: PodSpec) -> None:
        nodes = self.nodes()
        check_spec(spec, nodes)
        _check_text(spec)
        pod = self._pod(spec.name)
        if not pod.path.exists():
            node = next(node for node in nodes if node.name == spec.node)
            self._create(pod, self._prepare(spec, node))
            if spec.code is not None:
                self._spare_code.prepare(spec.code)
        # Checked last, because the mark is written before a forgotten pod's directory is removed.
        if self._mark_of_end(pod).exists():
            self._remove(pod)
            return
        prepared = pod.prepared()
        if pod.start_record() is None and pod.exit_record() is None and prepared is not None:
            self._start_shim(pod, prepared)

    def stop(self, pod_name: str, grace_seconds: int, project: str = "") -> None:
        base.check_pod_name(pod_name)
        pod = self._pod(pod_name)
        if pod.exit_record() is not None:
            return
        earlier = pod.stop_grace_seconds()
        if earlier is not None and pod.stop_age_seconds(time.time()) > earlier + OVERDUE_SECONDS:
            reports.kill_stuck(pod)
        if earlier is None or grace_seconds < earlier:
            pod.request_stop(grace_seconds)

    def pods(self) -> tuple[PodReport, ...]:
        found = {pod.name: report for pod in self._all() if (report := self._report_unless_forgotten(pod))}
        # The report of a pod that is gone never changes, so its files need not be read again.
        self._final = {name: report for name, report in found.items() if report.is_proven_gone}
        return tuple(found.values())

    def find(self, pod_name: str, project: str) -> PodReport | None:
        return next((report for report in self.pods() if report.name == pod_name), None)

    def forget(self, pod_name: str) -> None:
        base.check_pod_name(pod_name)
        pod = self._pod(pod_name)
        if pod.path.exists():
            if not self._report(pod).is_proven_gone:
                raise EngineRefused(base.POD_NOT_GONE, f"Pod {pod_name} is not gone yet; stop it first.")
            mark = self._mark_of_end(pod)
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.touch()
        self._remove(pod)

    def forget_job(self, job_id: str) -> None:
        base.check_pod_name(job_id)
        for kept in (job_directory(self._state_dir, job_id), self._ended_dir / job_id):
            if kept.exists():
                shutil.rmtree(kept)

    def read_logs(self, pod_name: str, offset: int, limit: int) -> LogPage:
        return read_page(self._prepared(pod_name).spec.log_path, offset, limit)

    def usage(self) -> tuple[UsageReport, ...]:
        readings = self._inventory.readings() if isinstance(self._inventory, NvmlInventory) else {}
        return self._gauges.read(self.nodes(), self._running_specs(), readings)

    def open_shell(self, pod_name: str, columns: int, rows: int) -> LocalShell:
        return LocalShell(*self._running(pod_name), columns, rows)

    def run_command(self, pod_name: str, command: Sequence[str]) -> LocalProcess:
        return LocalProcess(*self._running(pod_name), command)

    def open_port(self, pod_name: str, port: int) -> socket.socket:
        # Called for its exception: there is no such pod.
        self._prepared(pod_name)
        address = self._report(self._pod(pod_name)).ports.get(port)
        if address is None:
            raise EngineRefused(base.POD_NOT_RUNNING, f"Pod {pod_name} has no port {port} to reach now.")
        return socket.create_connection(address, CONNECT_SECONDS)

    def exchange(self, pod_name: str, membership: str) -> base.MemberReport:
        base.check_pod_name(pod_name)
        return self._pod(pod_name).exchange(membership)

    def wait_for_change(self, timeout_seconds: float) -> bool:
        """Block until a pod starts or ends, and return True; False after the timeout. Shims write to a pipe; of
        several waiting processes a change wakes at least one."""
        if not self._wakeup.exists():
            try:
                os.mkfifo(self._wakeup, 0o600)
            except FileExistsError:
                # Another process has just created it.
                pass
        # Also for writing: without a writer the pipe would always be readable.
        wakeup = os.open(self._wakeup, os.O_RDWR | os.O_NONBLOCK)
        try:
            has_arrived = is_readable(wakeup, timeout_seconds)
            if has_arrived:
                os.read(wakeup, 65536)
            return has_arrived
        except BlockingIOError:
            # Another process also waits on this pipe and read it first.
            return True
        finally:
            os.close(wakeup)

    def _pod(self, name: str) -> PodDir:
        return PodDir(self._pods_dir / name)

    def _mark_of_end(self, pod: PodDir) -> Path:
        """Return the path of the file that marks a pod as forgotten, so that a start request that arrives late does
        nothing."""
        return self._ended_dir / pod.name.rsplit("-", 2)[0] / pod.name

    def _create(self, pod: PodDir, prepared: Prepared) -> None:
        is_created = False
        try:
            is_created = pod.create(prepared, self._wakeup)
        finally:
            # After an error too: the ports of a pod without a directory would stay leased.
            if not is_created:
                release_ports(self._ports_dir, prepared.ports.values())

    def _remove(self, pod: PodDir) -> None:
        prepared = pod.prepared()
        release_ports(self._ports_dir, prepared.ports.values() if prepared else ())
        self._final.pop(pod.name, None)
        pod.remove()

    def _all(self) -> Iterator[PodDir]:
        with os.scandir(self._pods_dir) as entries:
            # Hidden names are the wakeup pipe, and pods that are being created or removed.
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        return (self._pod(name) for name in names)

    def _report(self, pod: PodDir) -> PodReport:
        return self._final.get(pod.name) or reports.report(pod)

    def _report_unless_forgotten(self, pod: PodDir) -> PodReport | None:
        try:
            return self._report(pod)
        except FileNotFoundError:
            if pod.path.exists():
                raise
            # Another caller removed the pod meanwhile.
            return None

    def _prepared(self, pod_name: str) -> Prepared:
        base.check_pod_name(pod_name)
        prepared = self._pod(pod_name).prepared()
        if prepared is None:
            raise EngineRefused(base.NO_SUCH_POD, f"There is no pod {pod_name!r}.")
        return prepared

    def _running(self, pod_name: str) -> tuple[Prepared, int]:
        """Return a running pod, as prepared for its start, and the process id of its command. Raise EngineRefused if
        it does not run."""
        prepared, pod = self._prepared(pod_name), self._pod(pod_name)
        started = pod.start_record()
        if started is None or self._report(pod).state != base.RUNNING:
            raise EngineRefused(base.POD_NOT_RUNNING, f"Pod {pod_name} is not running.")
        return prepared, started.pid

    def _running_specs(self) -> Iterator[PodSpec]:
        for pod in self._all():
            report = self._report_unless_forgotten(pod)
            if report is not None and report.state == base.RUNNING:
                prepared = pod.prepared()
                if prepared is not None:
                    yield prepared.spec

    def _prepare(self, spec: PodSpec, node: NodeReport) -> Prepared:
        """Return the pod with command, environment, directories and ports resolved; creates the directories and
        leases the ports. Raise EngineRefused if neither the job nor its image has a command."""
        catalogue = load_catalogue(BUILT_IN, self._state_dir / ADDED)
        command = IDLE if spec.is_host else command_line(catalogue, spec)
        image = catalogue.find(spec.image) or Image(spec.image)
        places = self._places(spec, image)
        declared = [*spec.ports, RANK_0_PORT] if spec.launches else spec.ports
        ports = lease_ports(self._ports_dir, spec.name, declared)
        env = pod_environment(spec, image.env, ports, places, secrets.token_hex(16))
        env |= device_variables(spec, node, self._inventory.is_simulated, has_real_gpus())
        if spec.is_elastic:
            env["TRAINYARD_ELASTIC_DIR"] = str(self._pods_dir / spec.name / ELASTIC)
        if spec.launches:
            env |= prepare_launch(spec, places["launch"], self._rank_environments(spec), ports[RANK_0_PORT])
        argv = tuple(expand(argument, env) for argument in command)
        log_path = spec.log_path or str(self._state_dir / "logs" / spec.name / "0.log")
        work_dir, stored_spec = str(places["work"]), replace(spec, log_path=log_path)
        return Prepared(stored_spec, argv, env, work_dir, ports, self._log_most_bytes, image.preload)

    def _rank_environments(self, spec: PodSpec) -> dict[str, dict[str, str]]:
        """Return, by pod name, the variables in which each rank of an MPI launcher differs from the launcher itself."""
        nodes = {node.name: node for node in self.nodes()}
        found = {}
        for member in spec.launches:
            pairs = zip(member.devices, spec.devices, strict=False)
            devices = tuple(replace(share, index=index) for index, share in pairs)
            own = replace(spec, rank=member.rank, node=member.node, devices=devices, launches=())
            env = device_variables(own, nodes[member.node], self._inventory.is_simulated, has_real_gpus())
            env |= {"TRAINYARD_RANK": str(member.rank), "TRAINYARD_NODE": member.node}
            found[member.pod_name] = env
        return found

    def _places(self, spec: PodSpec, image: Image) -> dict[str, Path]:
        """Return the pod's directories `work`, `checkpoints`, `library` and `launch`, with the job's code and the
        image's files in the first. Creates those that the engine owns."""
        job_dir = job_directory(self._state_dir, spec.job_id)
        own = work_directory(self._state_dir, spec.job_id, spec.rank)
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        if spec.code is not None:
            self._spare_code.place(spec.code, own)
        copy_files(image.files, own)
        library = self._state_dir / "lib"
        prepare_library(library, BUILT_IN.parent)
        work = Path(spec.working_dir or image.working_dir or own)
        launch = job_dir / f"launch-{spec.attempt}"
        checkpoints = checkpoint_directory(self._state_dir, spec.job_id)
        return {"work": work, "checkpoints": checkpoints, "library": library, "launch": launch}

    def _start_shim(self, pod: PodDir, prepared: Prepared) -> None:
        recipe = recipe_for(prepared.preload, prepared.argv, prepared.env, prepared.spec.env)
        if recipe is None or not self._fork_servers.start(recipe, pod.path):
            self._shims.start(pod)


def _check_text(spec: PodSpec) -> None:
    """Raise EngineRefused for a NUL character in any text, an invalid name of a variable, or an invalid job id."""
    texts = [*spec.command, *spec.args, *spec.env, *spec.env.values(), spec.working_dir or "", spec.log_path]
    if any("\0" in text for text in texts):
        raise EngineRefused(
            base.INVALID_POD, "Commands, arguments and environments cannot contain NUL characters."
        )
    if any(not name or "=" in name for name in spec.env):
        raise EngineRefused(base.INVALID_POD, "Names of environment variables cannot be empty or have '='.")
    base.check_pod_name(spec.job_id)
