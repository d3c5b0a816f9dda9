"""Create an attempt's objects: its anchor, its pods, and the objects that the pods need."""

from __future__ import annotations

import time

from controlplane.engines.base import ADMISSION_REFUSED, EngineRefused, NodeReport, PodSpec
from controlplane.engines.kubernetes import kai, manifests, mpi, names, reports, tenancy
from controlplane.engines.kubernetes.api_errors import refusals
from controlplane.engines.kubernetes.cluster_cache import Watching
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.mpi_operator import MpiOperator
from controlplane.engines.kubernetes.objects import Objects
from controlplane.engines.kubernetes.scheduler import Scheduler
from controlplane.engines.kubernetes.ssh_keys import new_key_pair
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.names import Raw

# The value in an anchor's data, by pod name, of a pod that must not start again.
FORGOTTEN = "forgotten"
SETTLING_SECONDS = (0.1, 0.2, 0.4, 0.8)


class PodStarter:
    def __init__(
        self,
        client: Client,
        objects: Objects,
        pods: Watching,
        profile: ClusterProfile,
        scheduler: Scheduler,
    ) -> None:
        self._client, self._objects, self._pods = client, objects, pods
        self._profile, self._scheduler = profile, scheduler
        self._operator = MpiOperator(client, objects, pods, profile)

    def start(self, spec: PodSpec, node: NodeReport | None) -> None:
        """Start the pod once. `node` None: the cluster's own scheduler chooses. Raise EngineRefused."""
        known = self._pods.pod(spec.name)
        if self._profile.placement.places_pods and spec.node:
            self._note_devices(known, spec)
            return
        # A repeated command: an earlier try created the pod, or a stop created a tombstone under its name.
        if known is not None:
            return
        for pause_seconds in SETTLING_SECONDS:
            try:
                self._start(spec, node)
                return
            except EngineRefused as refusal:
                # A cached object may have been deleted, and a new namespace takes a moment to become usable.
                self._objects.forget(names.namespace_path(self._profile.namespace_of(spec.project)))
                if not refusal.is_passing or refusal.code != ADMISSION_REFUSED:
                    raise
            time.sleep(pause_seconds)
        self._start(spec, node)

    def _start(self, spec: PodSpec, node: NodeReport | None) -> None:
        self._objects.require_namespace(tenancy.namespace(spec.project, self._profile))
        self._scheduler.require_project(spec.project)
        body = self._operator.mark(manifests.anchor(spec, self._profile), spec)
        with self._objects.in_use(names.path_of(body)):
            anchor = self._objects.make_remembered(body)
            if (anchor.get("data") or {}).get(spec.name) != FORGOTTEN:
                self._start_under(anchor, spec, node)

    def _start_under(self, anchor: Raw, spec: PodSpec, node: NodeReport | None) -> None:
        """Create the pod and the other objects of the attempt that are needed before it."""

        def render(of: PodSpec, profile: ClusterProfile) -> Raw:
            return self._scheduler.dress(manifests.pod(of, profile, node, anchor), of)

        pod = render(spec, self._profile)
        for body in self._scheduler.beside(spec, manifests.owner(anchor)):
            self._objects.make_remembered(body)
        # All ranks share the key that the first start created.
        if mpi.needs_launch(spec):
            key = manifests.launch_key(spec, self._profile, anchor, *new_key_pair())
            self._objects.make_remembered(key)
        # Decided by the anchor, because the settings may have changed since the attempt's first pod was started.
        if self._operator.makes_pods_of(anchor):
            self._operator.start(spec, pod, anchor, render)
            return
        for body in manifests.beside(spec, self._profile, anchor):
            self._objects.make_remembered(body)
        self._pods.observe(self._objects.make(pod))

    def _note_devices(self, known: Raw | None, spec: PodSpec) -> None:
        """Record the devices of a pod that the cluster's scheduler has placed. Does nothing for a pod that is gone."""
        if known is None or reports.devices_of(known) == spec.devices:
            return
        with refusals(404):
            self._pods.observe(self._client.merge(names.pod_path(known), kai.devices_patch(spec)))
