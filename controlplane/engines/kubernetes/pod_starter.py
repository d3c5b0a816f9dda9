"""Create an attempt's objects: its anchor, its pods, and the objects that the pods need."""

from __future__ import annotations

import time

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from controlplane.engines import base
from controlplane.engines.base import EngineRefused, NodeReport, PodSpec
from controlplane.engines.kubernetes import manifests, mpi, mpijobs, names, reports, tenancy
from controlplane.engines.kubernetes.api_errors import refusals
from controlplane.engines.kubernetes.cluster_cache import Watching
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.objects import Objects
from controlplane.engines.kubernetes.pod_creators import CREATORS
from controlplane.engines.kubernetes.scheduler import Scheduler
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.names import Raw

# The value in an anchor's data, by pod name, of a pod that must not start again.
FORGOTTEN = "forgotten"
SETTLING_SECONDS = (0.1, 0.2, 0.4, 0.8)


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
