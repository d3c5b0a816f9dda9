"""MPI jobs as MPIJobs: the operator creates an attempt's pods, and we turn them one by one into ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from controlplane.engines.base import WAITING_FOR_OPERATOR, EngineRefused, PodSpec
from controlplane.engines.kubernetes import manifests, mpijobs, names
from controlplane.engines.kubernetes.api_errors import as_refusal
from controlplane.engines.kubernetes.cluster_cache import Watching
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.objects import Objects
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.names import Raw

# The operator creates five objects a second; ranks are started in the order in which it creates them.
OPERATOR_SECONDS = (0.1,) * 10 + (0.3,) * 30

Render: TypeAlias = Callable[[PodSpec, ClusterProfile], Raw]


class MpiOperator:
    def __init__(self, client: Client, objects: Objects, pods: Watching, profile: ClusterProfile) -> None:
        self._client, self._objects, self._pods, self._profile = client, objects, pods, profile

    def mark(self, anchor: Raw, spec: PodSpec) -> Raw:
        """Return the anchor, marked if the operator is to create this attempt's pods. The mark applies to all
        ranks."""
        return mpijobs.marked(anchor, spec) if mpijobs.suits(spec, self._profile) else anchor

    def makes_pods_of(self, anchor: Raw) -> bool:
        return mpijobs.is_marked(anchor)

    def start(self, spec: PodSpec, pod: Raw, anchor: Raw, render: Render) -> None:
        """Create the MPIJob when the launcher starts, and turn the pod that the operator created for this rank into
        ours.

        Raise a temporary EngineRefused while the operator has not created the pod.
        """
        # Only the launcher's start creates the job; the starts of other ranks wait for their pods.
        if spec.launches:
            self._make_job(spec, pod, anchor, render)
        found = self._made(names.operated(mpijobs.mpi_job_name(spec), spec.rank))
        try:
            if names.is_unplaced(found):
                patch = mpijobs.placement(found, pod, self._profile.gpu_resource)
                found = self._client.merge(names.pod_path(found), patch)
        except ApiError as error:
            # In both cases the operator has replaced or changed the pod since it was read.
            if error.status not in (404, 409):
                raise as_refusal(error) from error
            raise _waiting("The MPI operator is changing this pod.") from error
        self._pods.observe(found)

    def _make_job(self, spec: PodSpec, pod: Raw, anchor: Raw, render: Render) -> None:
        claim = manifests.work_claim(spec, self._profile)
        if claim is not None:
            self._objects.make_remembered(claim)
        host = render(mpijobs.host_of(spec), mpijobs.host_profile(self._profile))
        self._objects.make_remembered(mpijobs.mpi_job(spec, pod, host, anchor))

    def _made(self, name: str) -> Raw:
        for pause_seconds in OPERATOR_SECONDS:
            found = self._pods.pod(name)
            if found is not None:
                return found
            time.sleep(pause_seconds)
        raise _waiting("The MPI operator has not made this pod yet: is it running?")


def _waiting(words: str) -> EngineRefused:
    return EngineRefused(WAITING_FOR_OPERATOR, words, is_passing=True)
