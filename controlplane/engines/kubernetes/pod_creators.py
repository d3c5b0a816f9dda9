"""The hooks by which an attempt's pods come to exist: created by us, or by an operator that turns one object into many
pods."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from controlplane.engines import base
from controlplane.engines.base import EngineRefused, PodSpec
from controlplane.engines.kubernetes import manifests, mpijobs, names
from controlplane.engines.kubernetes.api_errors import refusal_of
from controlplane.engines.kubernetes.cluster_cache import Watching
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.objects import Objects
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.names import Raw

# The manifest of a pod for a spec, by the settings of a cluster.
Render = Callable[[PodSpec, ClusterProfile], Raw]
# The operator creates five objects a second; ranks are started in the order in which it creates them.
OPERATOR_SECONDS = (0.1,) * 10 + (0.3,) * 30


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
