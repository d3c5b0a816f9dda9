"""What only elastic pods have: a directory for the membership, and an address for the other workers. No I/O."""

from __future__ import annotations

from typing import Any

from controlplane.engines.base import PodSpec
from controlplane.engines.kubernetes import member_agent
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.mounts import Volumes
from controlplane.engines.kubernetes.pod_scripts import python

DIRECTORY = "/run/trainyard/elastic"


def has_membership(spec: PodSpec, profile: ClusterProfile) -> bool:
    """Return whether the set of the attempt's pods may change while it runs. It never does where the cluster's own
    scheduler places pods, because that places whole gangs."""
    return spec.is_elastic and not profile.placement.places_pods


def environment(spec: PodSpec, profile: ClusterProfile) -> dict[str, dict[str, Any]]:
    """Return the variables for an elastic pod, by name: `value` or `valueFrom` of an EnvVar; {} for other pods."""
    if not has_membership(spec, profile):
        return {}
    return {
        "TRAINYARD_ELASTIC_DIR": {"value": DIRECTORY},
        "TRAINYARD_ELASTIC_HOST": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    }


def volumes(spec: PodSpec, profile: ClusterProfile) -> Volumes:
    """Return the volume for an elastic pod's membership file, by name: its mount and its definition; {} for other
    pods."""
    place = {"mountPath": DIRECTORY}
    return {"elastic": (place, {"emptyDir": {}})} if has_membership(spec, profile) else {}


def agent_command() -> tuple[str, ...]:
    """Return the command that the engine runs by exec beside an elastic pod's program (member_agent.py)."""
    return (*python(member_agent), DIRECTORY)
