"""What an elastic pod has besides: a directory for its membership, and the address at which others reach it. Pure, but
for reading the agent's text once."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from controlplane.engines.base import PodSpec
from controlplane.engines.kubernetes import member_agent
from controlplane.engines.kubernetes.config import PLANNER, ClusterProfile

DIRECTORY = "/run/trainyard/elastic"


def has_membership(spec: PodSpec, profile: ClusterProfile) -> bool:
    """Return whether the pods of the attempt may change. Where KAI decides they do not: it places whole gangs."""
    return spec.is_elastic and profile.scheduler == PLANNER


def environment(spec: PodSpec, profile: ClusterProfile) -> dict[str, dict[str, Any]]:
    """Return variables by name, as the fields beside the name."""
    if not has_membership(spec, profile):
        return {}
    return {
        "TRAINYARD_ELASTIC_DIR": {"value": DIRECTORY},
        "TRAINYARD_ELASTIC_HOST": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    }


def volumes(spec: PodSpec, profile: ClusterProfile) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return volumes by name, each with its mount path and source."""
    return {"elastic": (DIRECTORY, {"emptyDir": {}})} if has_membership(spec, profile) else {}


@cache
def agent_command() -> tuple[str, ...]:
    """Return what runs in the pod beside its program."""
    return ("python3", "-I", "-c", inspect.getsource(member_agent), DIRECTORY)
