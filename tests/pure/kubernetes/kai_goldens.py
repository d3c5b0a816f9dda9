"""The objects that the engine creates for KAI Scheduler, one file per case in golden_kai/. After an intended
change:

python -m tests.pure.kubernetes.kai_goldens && git diff tests/pure/kubernetes/golden_kai"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlplane.engines.base import DepartmentReport, DeviceShare, PodSpec, ProjectReport
from controlplane.engines.kubernetes import kai, manifests
from controlplane.engines.kubernetes.config import KAI, ClusterProfile
from tests.pure.kubernetes.goldens import Golden, anchor, spec, text_of

FOLDER = Path(__file__).parent / "golden_kai"
PROFILE = ClusterProfile(scheduler=KAI)
TOPOLOGY = {"topology": "hall-1", "requiredTopologyLevel": "example.com/rack"}
DEPARTMENTS = (DepartmentReport("vision", 6000, None, 6000, 1), DepartmentReport("open", None, 8000, 1000))
PROJECTS = (
    ProjectReport("team-a", 4000, 8000, 4000, 2, "vision"),
    ProjectReport("team-b", 2500, None, 0, -1, "open"),
    ProjectReport("team-c", 0, None, 500),
)


def attempt(*specs: PodSpec) -> Callable[[ClusterProfile], list[dict[str, Any]]]:
    """Return a function that returns the objects that KAI needs beside these pods, then the pods, for a profile."""

    def make(profile: ClusterProfile) -> list[dict[str, Any]]:
        made = anchor(specs[0], profile)
        found = kai.beside(specs[0], manifests.owner(made), profile)
        return [*found] + [kai.dress(manifests.pod(one, profile, None, made), one, profile) for one in specs]

    return make


def unplaced(rank: int = 0, **fields: Any) -> PodSpec:
    """Return the spec of a pod without a node, with two devices."""
    return spec(rank, node="", **{"devices": (DeviceShare(0, 1000, 0), DeviceShare(1, 1000, 0)), **fields})


GOLDENS: dict[str, Golden] = {
    "queues": Golden(PROFILE, lambda profile: kai.queues(PROJECTS, DEPARTMENTS, profile)),
    "train": Golden(PROFILE, attempt(unplaced())),
    "interactive": Golden(
        PROFILE, attempt(unplaced(kind="interactive", is_preemptible=False, priority=100, devices=()))
    ),
    "gang": Golden(
        replace(PROFILE, topology=TOPOLOGY),
        attempt(*(unplaced(rank, world_size=2, min_pods=2) for rank in range(2))),
    ),
    "avoiding": Golden(
        replace(PROFILE, pool_label="pool"),
        attempt(unplaced(node_pools=("spot", "default"), avoid_nodes=("dgx1", "dgx2"))),
    ),
    "share": Golden(PROFILE, attempt(unplaced(devices=(DeviceShare(0, 300, 0),)))),
    "share-by-memory": Golden(PROFILE, attempt(unplaced(devices=(DeviceShare(0, 0, 20000),)))),
}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, golden in GOLDENS.items():
        path_of(name).write_text(text_of(golden))


if __name__ == "__main__":
    main()
