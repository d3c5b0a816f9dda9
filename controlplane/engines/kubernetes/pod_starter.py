"""Create an attempt's objects: its anchor, its pods, and the objects that the pods need.

Pods are created by us, or by an operator that turns one object into many pods; a `PodCreator` has the hooks for a way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from controlplane.engines import base
from controlplane.engines.base import EngineRefused, NodeReport, PodSpec
from controlplane.engines.kubernetes import manifests, mpi, mpijobs, names, reports, tenancy
from controlplane.engines.kubernetes.api_errors import refusal_of, refusals
from controlplane.engines.kubernetes.cluster_cache import Watching
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.objects import Objects
from controlplane.engines.kubernetes.scheduler import Scheduler
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.names import Raw

# The value in an anchor's data, by pod name, of a pod that must not start again.
FORGOTTEN = "forgotten"
SETTLING_SECONDS = (0.1, 0.2, 0.4, 0.8)

# The manifest of a pod for a spec, by the settings of a cluster.
Render = Callable[[PodSpec, ClusterProfile], Raw]
# The operator creates five objects a second; ranks are started in the order in which it creates them.
OPERATOR_SECONDS = (0.1,) * 10 + (0.3,) * 30


class PodStarter:
    """Creates pods, with the objects that they need before. Thread-safe."""

    def __init__(
        self, client: Client, objects: Objects, pods: Watching, profile: ClusterProfile, scheduler: Scheduler
    ) -> None:
        self._client, self._objects, self._pods = client, objects, pods
        self._profile, self._scheduler = profile, scheduler
        self._creators = [creator(client, objects, pods, profile) for creator in CREATORS]

    def start(self, spec: PodSpec, node: NodeReport | None) -> None:
        """Start the pod unless it was started or stopped before. `node` None: the cluster's own scheduler chooses. Once
        that has placed the pod (`spec.node`), only write the chosen devices to the pod's annotation. Blocks for up to
        some seconds while the cluster becomes ready. Raise EngineRefused if the cluster refuses an object."""
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
                if not refusal.is_passing or refusal.code != base.ADMISSION_REFUSED:
                    raise
            time.sleep(pause_seconds)
        self._start(spec, node)

    def _start(self, spec: PodSpec, node: NodeReport | None) -> None:
        self._objects.require_namespace(tenancy.namespace(spec.project, self._profile))
        self._scheduler.require_project(spec.project)
        body = next(one for one in self._creators if one.suits(spec)).anchor(spec)
        with self._objects.in_use(names.path_of(body)):
            anchor = self._objects.make_remembered(body)
            if (anchor.get("data") or {}).get(spec.name) != FORGOTTEN:
                self._start_under(anchor, spec, node)

    def _start_under(self, anchor: Raw, spec: PodSpec, node: NodeReport | None) -> None:
        """Create the objects that the pod needs, then the pod. `anchor`: the attempt's, as the cluster returned it."""

        def render(of: PodSpec, profile: ClusterProfile) -> Raw:
            return self._scheduler.dress(manifests.pod(of, profile, node, anchor), of)

        pod = render(spec, self._profile)
        for body in self._scheduler.beside(spec, manifests.owner(anchor)):
            self._objects.make_remembered(body)
        # All ranks share the key that the first start created.
        if mpi.needs_launch(spec):
            key = manifests.launch_key(spec, self._profile, anchor, *_new_key_pair())
            self._objects.make_remembered(key)
        # By the anchor, because the settings may have changed since the attempt's first pod was started.
        mark = (anchor.get("data") or {}).get(mpijobs.LAUNCHED_BY)
        next(one for one in self._creators if one.mark in ("", mark)).create(spec, pod, anchor, render)

    def _note_devices(self, known: Raw | None, spec: PodSpec) -> None:
        """Write the devices that were chosen for a placed pod to its annotation, unless it has these already. `known`:
        the pod as seen last; does nothing if that is None or the pod is gone."""
        if known is None or reports.devices_of(known) == spec.devices:
            return
        noted = {names.DEVICES: manifests.write_devices(spec.devices)}
        with refusals(404):
            patch = {"metadata": {"annotations": noted}}
            self._pods.observe(self._client.merge(names.pod_path(known), patch))


def _new_key_pair() -> tuple[str, str]:
    """Return a new (private, public) Ed25519 key in OpenSSH's formats."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode() + "\n"


class PodCreator:
    """The hooks for one way in which pods come to exist. These defaults create each pod directly; operators override
    all of them. Thread-safe."""

    # What the anchor has as LAUNCHED_BY if this creates the attempt's pods.
    mark = ""

    def __init__(self, client: Client, objects: Objects, pods: Watching, profile: ClusterProfile) -> None:
        self._client, self._objects, self._pods, self._profile = client, objects, pods, profile

    def suits(self, spec: PodSpec) -> bool:
        """Return whether it can create the attempt's pods, the same for all of them."""
        return True

    def anchor(self, spec: PodSpec) -> Raw:
        """Return the attempt's anchor, with this one's mark."""
        return manifests.anchor(spec, self._profile)

    def create(self, spec: PodSpec, pod: Raw, anchor: Raw, render: Render) -> None:
        """Create the pod with what it needs of its own. `pod`: what `render` makes of `spec`; `anchor`: the attempt's,
        as the cluster returned it. Raise EngineRefused if the cluster refuses an object."""
        for body in manifests.beside(spec, self._profile, anchor):
            self._objects.make_remembered(body)
        self._pods.observe(self._objects.make(pod))


class MpiOperator(PodCreator):
    """Creates one MPIJob for an attempt. The MPI operator creates the pods, which are turned into ours one by one."""

    mark = mpijobs.OPERATOR

    def suits(self, spec: PodSpec) -> bool:
        return mpijobs.suits(spec, self._profile)

    def anchor(self, spec: PodSpec) -> Raw:
        return mpijobs.anchor(spec, self._profile)

    def create(self, spec: PodSpec, pod: Raw, anchor: Raw, render: Render) -> None:
        """Create the MPIJob if the pod is the launcher, and turn the pod that the operator created for this rank into
        ours. Raise a temporary EngineRefused while the operator has not created that pod."""
        # Only the launcher's start creates the job; the starts of other ranks wait for their pods.
        if spec.launches:
            if (claim := manifests.work_claim(spec, self._profile)) is not None:
                self._objects.make_remembered(claim)
            # One template cannot name a claim per host.
            host = render(mpijobs.host_of(spec), replace(self._profile, work_storage_class=""))
            self._objects.make_remembered(mpijobs.mpi_job(spec, pod, host, anchor))
        found = self._operated(names.operated(mpijobs.mpi_job_name(spec), spec.rank))
        try:
            if names.is_unplaced(found):
                patch = mpijobs.placement(found, pod, self._profile.gpu_resource)
                found = self._client.merge(names.pod_path(found), patch)
        except ApiError as error:
            # In both cases the operator has replaced or changed the pod since it was read.
            if error.status not in (404, 409):
                raise refusal_of(error) from error
            words = "The MPI operator is changing this pod."
            raise EngineRefused(base.WAITING_FOR_OPERATOR, words, is_passing=True) from error
        self._pods.observe(found)

    def _operated(self, name: str) -> Raw:
        for pause_seconds in OPERATOR_SECONDS:
            if (found := self._pods.pod(name)) is not None:
                return found
            time.sleep(pause_seconds)
        words = "The MPI operator has not created this pod yet: is it running?"
        raise EngineRefused(base.WAITING_FOR_OPERATOR, words, is_passing=True)


# In this order: the first that suits creates an attempt's pods.
CREATORS = (MpiOperator, PodCreator)
