"""The objects that the MPI operator gets, one file per case in golden_mpi/. After an intended change:

python -m tests.pure.kubernetes.mpi_goldens && git diff tests/pure/kubernetes/golden_mpi"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from controlplane.engines.base import PodSpec
from controlplane.engines.kubernetes import manifests, mpijobs
from controlplane.engines.kubernetes.config import ClusterProfile
from tests.pure.kubernetes.goldens import LAUNCHES, Golden, anchor, node, spec, text_of

FOLDER = Path(__file__).parent / "golden_mpi"
PROFILE = ClusterProfile(mpi_operator=True)
LAUNCHER = spec(kind="mpi", world_size=2, min_pods=2, role="launcher", launches=LAUNCHES)


def job(launcher: PodSpec, profile: ClusterProfile) -> list[dict[str, Any]]:
    """Return the attempt's anchor and its MPIJob."""
    made = anchor(launcher, profile, mpijobs.anchor)
    pods = (
        manifests.pod(launcher, profile, node(), made),
        manifests.pod(mpijobs.host_of(launcher), replace(profile, work_storage_class=""), node(), made),
    )
    return [
        mpijobs.anchor(launcher, profile),
        mpijobs.mpi_job(launcher, *pods, made),
    ]


GOLDENS: dict[str, Golden] = {
    "mpi-job": Golden(PROFILE, lambda profile: job(LAUNCHER, profile)),
    "kept-work": Golden(replace(PROFILE, work_storage_class="fast"), lambda profile: job(LAUNCHER, profile)),
}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.yaml"):
        file.unlink()
    for name, golden in GOLDENS.items():
        path_of(name).write_text(text_of(golden))


if __name__ == "__main__":
    main()
