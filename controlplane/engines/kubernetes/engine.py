"""Run pods on a Kubernetes cluster. Between two calls all state is in the cluster's objects.

Every attempt has an anchor (a ConfigMap) that owns its objects. A pod has a finalizer of ours, so that its end can
still be read until `forget`, even if others delete the pod. The anchor then records that the pod existed, so that a
delayed repeat of `start` starts nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from controlplane.engines import base
from controlplane.engines.base import EngineRefused, NodeReport, PodReport, PodSpec
from controlplane.engines.kubernetes import dcgm, elastic, inventory, manifests, names, reports, tenancy
from controlplane.engines.kubernetes.api_errors import refusals
from controlplane.engines.kubernetes.cache_volume import CacheVolume
from controlplane.engines.kubernetes.claim_reader import ClaimReader
from controlplane.engines.kubernetes.cluster_cache import (
    SHORT_WAIT_SECONDS,
    SILENCE_SECONDS,
    KnownReports,
    Watching,
)
from controlplane.engines.kubernetes.config import KAI, profile_from
from controlplane.engines.kubernetes.exec import PodProcess, PodShell
from controlplane.engines.kubernetes.log_copier import LogCopier
from controlplane.engines.kubernetes.log_copy import LogSource
from controlplane.engines.kubernetes.membership import Memberships
from controlplane.engines.kubernetes.node_suffix import with_suffix
from controlplane.engines.kubernetes.objects import Objects
from controlplane.engines.kubernetes.output_reader import OutputReader
from controlplane.engines.kubernetes.pod_starter import FORGOTTEN, PodStarter
from controlplane.engines.kubernetes.port_forward import open_port
from controlplane.engines.kubernetes.prometheus import prometheus_of
from controlplane.engines.kubernetes.scheduler import KaiScheduler, Scheduler
from controlplane.engines.kubernetes.tenancy_sync import Syncer
from controlplane.engines.simulated import check_place
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import Access, access_from
from controlplane.kubernetes_api.names import Raw, key_of
from controlplane.kubernetes_api.reflector import Reflector
from controlplane.logstore.reader import LogPage, log_path, read_page
from datasets.storage.claims import CLAIM_DELETED, CacheClaim, trouble_of
from datasets.storage.csi import ClaimKind, CsiVolumes

# How long a stop or forget waits until the rest of an ended pod's log is copied, because the log is lost with the pod.
DRAIN_SECONDS = 5.0
# The time-out for reading a single pod, because the caller may serve other clusters too.
FIND_SECONDS = 2.0


def open_cluster(settings: Mapping[str, Any], state_dir: Path) -> base.Engine:
    """Return the engine of a cluster. With the setting `node_suffix` it uses nodes' names with that suffix. Raise
    SettingsInvalid for invalid settings, EngineRefused if the credentials cannot be used."""
    return with_suffix(KubernetesEngine(settings, state_dir), settings.get("node_suffix", ""))


class KubernetesEngine:
    """The engine for a Kubernetes cluster. Thread-safe."""

    def __init__(self, settings: Mapping[str, Any], state_dir: Path, *, access: Access | None = None) -> None:
        self._profile = profile_from(settings)
        self._logs_dir = state_dir.absolute() / "logs"
        credentials = settings.get("credentials") or {}
        self.client = Client(access or access_from(credentials))
        self._objects = Objects(self.client, self._profile.installation)
        self._syncer = Syncer(self.client, self._objects, self._profile)
        self._copier = LogCopier(self.client, self._log_source)
        self._watching = Watching(self.client, self._profile, self._copier.notice)
        is_kai = self._profile.scheduler == KAI
        self._scheduler = KaiScheduler(self.client, self._objects, self._profile) if is_kai else Scheduler()
        self._starter = PodStarter(self.client, self._objects, self._watching, self._profile, self._scheduler)
        self._known_reports = KnownReports(self._watching.node_of)
        # Also those of other installations: their namespaces are never asked about.
        path, query = names.list_path("PersistentVolumeClaim"), {"labelSelector": names.PROJECT}
        self._claims = Reflector(self.client, path, query=query, keep=trouble_of)
        self._memberships = Memberships(
            lambda pod_name: self.run_command(pod_name, elastic.agent_command()), self._watching.notify
        )
        self._ask_prometheus = prometheus_of(self._profile.prometheus, self.client)

    @property
    def capabilities(self) -> base.Capabilities:
        found = {base.SHELL, base.REACHES_PORTS}
        if self._ask_prometheus is not None:
            found.add(base.USAGE)
        if not self._profile.placement.places_pods:
            found.add(base.MEMBERSHIP)
        if self._profile.placement.gives_shares or self._most_parts() > 1:
            found.add(base.FRACTIONS)
        return frozenset(found)

    def nodes(self) -> tuple[NodeReport, ...]:
        seen = self._watching.look(SHORT_WAIT_SECONDS)
        return inventory.node_reports(seen.nodes.values(), [*seen.ours.values(), *seen.others], self._profile)

    def start(self, spec: PodSpec) -> None:
        base.check_pod_name(spec.name)
        self._starter.start(spec, self._node_of(spec))

    def stop(self, pod_name: str, grace_seconds: int, project: str = "") -> None:
        base.check_pod_name(pod_name)
        pod = self._watching.pod(pod_name)
        if pod is None:
            pod = self._make_tombstone(pod_name, project)
        report = self._report(pod)
        if not report.is_proven_gone:
            if reports.has_command_ended(pod):
                self._require_log(pod, report)
            # Grace 0 would delete the object before the kubelet has ended the pod.
            self._end(pod, max(1, grace_seconds))

    def _make_tombstone(self, pod_name: str, project: str) -> Raw:
        """Create a placeholder under the pod's name, so that the pod can never start. Return it, or the pod if it
        exists. Raise EngineRefused without `project`."""
        if not project:
            raise EngineRefused(
                base.NO_SUCH_POD, f"There is no pod {pod_name!r}, and its project is not known."
            )
        self._make_namespace(project)
        made = self._objects.make(manifests.tombstone(pod_name, project, self._profile))
        self._watching.observe(made)
        return made

    def _end(self, pod: Raw, grace_seconds: int) -> None:
        path, metadata = names.pod_path(pod), pod["metadata"]
        # Ignored, because the pod has just disappeared and the watch reports how.
        with refusals(404, 409):
            # The label is set before the deletion: in the other order, the pod would count as deleted by others.
            if names.STOPPED not in metadata["labels"]:
                word = names.AFTER_ITS_END if reports.has_command_ended(pod) else "true"
                pod = self.client.merge(path, {"metadata": {"labels": {names.STOPPED: word}}})
            if metadata.get("deletionGracePeriodSeconds", grace_seconds + 1) > grace_seconds:
                pod = self.client.delete(path, grace_seconds=grace_seconds, uid=metadata["uid"]) or pod
            self._watching.observe(pod)

    def pods(self) -> tuple[PodReport, ...]:
        seen = self._watching.look(SHORT_WAIT_SECONDS)
        now = self.client.server_time()
        return self._scheduler.with_status(self._known_reports.of(seen.ours.values(), now), seen.ours, now)

    def find(self, pod_name: str, project: str) -> PodReport | None:
        base.check_pod_name(pod_name)
        path = names.list_path("Pod", self._profile.namespace_of(project))
        brief = {"timeout_seconds": FIND_SECONDS, "tries": 2}
        found = self._objects.read(f"{path}/{pod_name}", **brief)
        found = found or next(self._labelled(path, pod_name, **brief), None)
        if found is None:
            return None
        if not self._profile.is_our_pod(found):
            if names.FINALIZER not in (found["metadata"].get("finalizers") or ()):
                # A pod of another owner holds the name, so ours cannot exist.
                return None
            raise EngineRefused(
                base.NAME_TAKEN, f"Pod {pod_name} is Trainyard's, and its labels were changed."
            )
        self._watching.observe(found)
        return self._report(found)

    def forget(self, pod_name: str) -> None:
        pod = self._watching.pod(pod_name)
        if pod is None:
            return
        report = self._report(pod)
        if not report.is_proven_gone:
            raise EngineRefused(base.POD_NOT_GONE, f"Pod {pod_name} is not gone yet; stop it first.")
        self._require_log(pod, report)
        # In this order: once the pod is gone, a delayed start request must find the record.
        self._remember_end(pod)
        self._remove(pod)
        self._copier.forget(pod_name)
        self._memberships.forget(pod_name)

    def forget_job(self, job_id: str) -> None:
        base.check_pod_name(job_id)
        query = {"labelSelector": names.of_job(self._profile.installation, job_id)}
        with refusals():
            kind = "PersistentVolumeClaim"
            for claim in self.client.get(names.list_path(kind), query)["items"]:
                self.client.delete(names.path_of(claim, kind), uid=claim["metadata"]["uid"])

    def volumes(self, project: str, storage_class: str, size_bytes: int, access_mode: str) -> CsiVolumes:
        """Return the project's volumes, which are claims in this cluster. `storage_class`, `size_bytes` and
        `access_mode` are for new claims."""
        labels = names.labels(self._profile.installation, project)
        kind = ClaimKind(storage_class, size_bytes, access_mode)
        namespace = self._profile.namespace_of(project)
        return CsiVolumes(self.client, namespace, labels, kind, lambda: self._make_namespace(project))

    def claim_trouble(self, project: str, claim: str) -> str | None:
        """Return what is wrong with a project's claim as last seen, a code of storage.claims; "" if nothing is, None
        if unknown. Sends no request: the first call starts a watch."""
        self._claims.start()
        if not self._claims.wait_synced(0) or self._claims.seconds_since_contact() > SILENCE_SECONDS:
            return None
        found: str | None = self._claims.get(key_of(self._profile.namespace_of(project), claim))
        return CLAIM_DELETED if found is None else found

    def caches(self, project: str, claim: CacheClaim) -> CacheVolume:
        """Return a handle on the project's cache volume that `claim` describes. Sends no request; the claim may not
        exist yet."""
        return CacheVolume(self.client, project, self._profile, claim, lambda: self._make_namespace(project))

    def _make_namespace(self, project: str) -> None:
        self._objects.require_namespace(tenancy.namespace(project, self._profile))

    def files_of(self, project: str) -> ClaimReader:
        """Return a reader of files in the project's volumes."""
        return ClaimReader(self.client, project, self._profile)

    def outputs(self, project: str) -> OutputReader:
        """Return a reader of files in the working directories of the project's jobs."""
        return OutputReader(self.client, project, self._profile)

    def read_logs(self, pod_name: str, offset: int, limit: int) -> LogPage:
        path = self._log_path(pod_name)
        pod = self._watching.pod(pod_name)
        if pod is None and not path.exists():
            raise EngineRefused(base.NO_SUCH_POD, f"There is no pod {pod_name!r}.")
        if pod is not None and reports.has_ended(pod) and self._copier.is_wanted(pod_name):
            self._copier.wait_drained(pod_name, DRAIN_SECONDS)
        return read_page(path, offset, limit)

    def usage(self) -> tuple[base.UsageReport, ...]:
        gpus = dcgm.read_gpus(self._ask_prometheus) if self._ask_prometheus is not None else ()
        seen = self._watching.look(SHORT_WAIT_SECONDS)
        holdings = reports.holdings(seen.ours.values())
        return dcgm.usage_of(self.nodes(), holdings, gpus)

    def open_shell(self, pod_name: str, columns: int, rows: int) -> base.Shell:
        return PodShell(self.client.access, *self._running(pod_name), columns, rows)

    def run_command(self, pod_name: str, command: Sequence[str]) -> base.Process:
        return PodProcess(self.client.access, *self._running(pod_name), command)

    def open_port(self, pod_name: str, port: int) -> socket.socket:
        return open_port(self.client.access, *self._running(pod_name), port)

    def exchange(self, pod_name: str, membership: str) -> base.MemberReport:
        """Set an elastic pod's membership ("" keeps it) and return its last report, empty if there is none. Does not
        wait for the pod."""
        pod = self._watching.last_seen(pod_name)
        # Read from the cache, because every cycle asks about every elastic pod.
        is_running = pod is not None and reports.is_running(pod)
        return self._memberships.exchange(pod_name, membership, is_running=is_running)

    def copy_logs(self, paths: Mapping[str, str]) -> None:
        if paths and not self._watching.has_looked():
            # Before the first list a pod that is missing here may exist; the loop calls again within a second.
            return
        self._copier.want(paths)

    def sync_projects(
        self, projects: Sequence[base.ProjectReport], departments: Sequence[base.DepartmentReport] = ()
    ) -> None:
        pods = self._watching.look().ours.values()
        queues = self._scheduler.project_objects(projects, departments)
        wanted = [*queues, *tenancy.objects(projects, self._profile, self._most_parts())]
        self._syncer.sync(wanted, pods)

    def _most_parts(self) -> int:
        return inventory.most_parts(self._watching.last_nodes().values())

    def forget_project(self, project: str) -> None:
        self._objects.remove(names.namespace_path(self._profile.namespace_of(project)), project)
        self._scheduler.forget_project(project)

    def close(self) -> None:
        # Closed in this order, because the first ones have threads that use the last ones.
        self._memberships.close()
        self._copier.close()
        self._scheduler.close()
        self._watching.close()
        self._claims.close()
        self.client.close()

    def wait_for_change(self, timeout_seconds: float) -> bool:
        return self._watching.wait_for_change(timeout_seconds)

    def _node_of(self, spec: PodSpec) -> NodeReport | None:
        """Return the report of the node chosen for the pod; None if the cluster's own scheduler chooses. Raise
        EngineRefused if there is no such node or device."""
        if not spec.node:
            return None
        raw = self._watching.nodes().get(spec.node)
        nodes = inventory.node_reports([raw], [], self._profile) if raw is not None else ()
        check_place(spec, nodes)
        return nodes[0]

    def _report(self, pod: Raw) -> PodReport:
        return self._known_reports.one(pod, self.client.server_time())

    def _remember_end(self, pod: Raw) -> None:
        """Record in the attempt's anchor, if it exists, that this pod has ended, so that a start request that arrives
        late does nothing."""
        parts = base.parts_of(names.pod_name(pod))
        # A pod of another owner that has our labels.
        if parts is None:
            return
        anchors = names.list_path("ConfigMap", pod["metadata"]["namespace"])
        path = f"{anchors}/{names.anchor_name(*parts[:2])}"
        with refusals(404):
            self.client.merge(path, {"data": {names.pod_name(pod): FORGOTTEN}})
        self._objects.forget(path)

    def _remove(self, pod: Raw) -> None:
        """Remove our finalizer from a pod, then delete the pod. Repeatable, because the process may die in between."""
        path, uid = names.pod_path(pod), pod["metadata"]["uid"]
        # A 409 means that another pod has this name now, so ours is gone already.
        with refusals(404, 409):
            released = self.client.remove_finalizer(path, names.FINALIZER, uid=uid)
            if released is not None and released["metadata"].get("deletionGracePeriodSeconds") != 0:
                self.client.delete(path, grace_seconds=0, uid=uid)
        self._watching.hide(pod)

    def _running(self, pod_name: str) -> tuple[str, str]:
        """Return (namespace, name) of a running pod. Raise EngineRefused if it does not run, EngineUnreachable if the
        cluster does not answer. Reads only this pod from the server, so that a process which opens shells needs no
        watches."""
        base.check_pod_name(pod_name)
        labelled = self._labelled(names.list_path("Pod"), pod_name)
        pod = next((one for one in labelled if self._profile.is_our_pod(one)), None)
        if pod is None:
            raise EngineRefused(base.NO_SUCH_POD, f"There is no pod {pod_name!r}.")
        if not reports.is_running(pod):
            raise EngineRefused(base.POD_NOT_RUNNING, f"Pod {pod_name} is not running.")
        return str(pod["metadata"]["namespace"]), str(pod["metadata"]["name"])

    def _labelled(self, path: str, pod_name: str, **options: Any) -> Iterator[Raw]:
        """Yield the pods in the list at `path` that are this pod by our labels; pods of the MPI operator have other
        names. `options`: those of `Client.get`."""
        parts = base.parts_of(pod_name)
        if parts is None:
            return
        query = {"labelSelector": names.of_job(self._profile.installation, parts[0])}
        with refusals():
            found = self.client.get(path, query, **options)["items"]
        yield from (pod for pod in found if not names.is_unplaced(pod) and names.pod_name(pod) == pod_name)

    def _require_log(self, pod: Raw, report: PodReport) -> None:
        """Raise a temporary EngineRefused while the end of the pod's log is not copied, because deleting the pod
        deletes its log."""
        path, has_begun = self._log_path(report.name), reports.has_begun(pod)
        if not self._copier.is_read(report.name, path, has_begun=has_begun):
            words = f"The rest of the log of pod {report.name} is still being read."
            raise EngineRefused(base.POD_NOT_GONE, words, is_passing=True)

    def _log_path(self, pod_name: str) -> Path:
        """Return the path of a pod's log in the log store. Raise EngineRefused for a name that is no pod's."""
        base.check_pod_name(pod_name)
        parts = base.parts_of(pod_name)
        if parts is None:
            raise EngineRefused(base.NO_SUCH_POD, f"There is no pod {pod_name!r}.")
        return log_path(self._logs_dir, *parts)

    def _log_source(self, pod_name: str) -> LogSource | None:
        """Return where the copier finds a pod's log, by the pod's last known state; None if there is no such pod."""
        pod = self._watching.last_seen(pod_name)
        if pod is None:
            return None
        report = self._report(pod)
        return LogSource(
            f"{names.pod_path(pod)}/log",
            has_started=reports.has_begun(pod),
            end_word=f"{report.reason} {report.exit_code}" if report.state in base.FINAL_STATES else "",
            started_ms=int(report.started_at.timestamp() * 1000) if report.started_at else None,
        )
