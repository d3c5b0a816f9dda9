"""The Kubernetes objects that the engine creates, one file per case in golden/. After an intended change, read
the difference:

python -m tests.pure.kubernetes.goldens && git diff tests/pure/kubernetes/golden"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from controlplane.engines.base import (
    DeviceShare,
    GangMember,
    NodeReport,
    PodSpec,
    ProjectReport,
    SecretValue,
    pod_name,
)
from controlplane.engines.kubernetes import manifests, names, tenancy
from controlplane.engines.kubernetes.config import KAI, ClusterProfile

GOLDEN = Path(__file__).parent / "golden"
JOB = "5f0c1d2e-0000-4000-8000-000000000001"
RESTRICTED = ClusterProfile()
BASELINE = ClusterProfile(
    pod_security="baseline", run_as_user=None, run_as_group=None, namespace_prefix="base-"
)
PRIVILEGED = ClusterProfile(
    pod_security="privileged", namespace_prefix="open-", host_network=True, host_paths={"/raid": "/mnt/raid"}
)
WHOLE = DeviceShare(0, 1000, 81920)
TEAM = ProjectReport(
    "team-a", 4000, 8000, 1000, members=(("ana", "owner"), ("ben", "member"), ("bea", "member"))
)


@dataclass(frozen=True)
class Golden:
    """A case: the profile of its cluster, and a function that returns its objects."""

    profile: ClusterProfile
    make: Callable[[ClusterProfile], list[dict[str, Any]]]


def spec(rank: int = 0, **fields: Any) -> PodSpec:
    """Return the spec of a pod of the job hyper1 of team-a on the node dgx1, with one whole GPU unless `fields`
    says otherwise."""
    defaults: dict[str, Any] = {"image": "registry.example/train:1", "devices": (WHOLE,), "node": "dgx1"}
    return PodSpec(pod_name(JOB, 1, rank), JOB, "hyper1", "team-a", 1, rank, **{**defaults, **fields})


def node(**fields: Any) -> NodeReport:
    """Return the report of the node dgx1, without devices."""
    defaults: dict[str, Any] = {"pool": "default", "devices": (), "milli_cpus": 1, "memory_mib": 1}
    return NodeReport("dgx1", is_ready=True, **{"device_parts": 1, **defaults, **fields})


def anchor(
    of: PodSpec,
    profile: ClusterProfile,
    anchor_of: Callable[[PodSpec, ClusterProfile], dict[str, Any]] = manifests.anchor,
) -> dict[str, Any]:
    """Return the attempt's anchor object as the API server returns it, with a uid. `anchor_of` builds the one that is
    sent."""
    made = anchor_of(of, profile)
    return {**made, "metadata": {**made["metadata"], "uid": "0b9c1c8e-1111-4000-8000-000000000002"}}


def pods(*specs: PodSpec, on: NodeReport | None = None) -> Callable[[ClusterProfile], list[dict[str, Any]]]:
    """Return a function that returns the objects beside these pods, then the pods, for a profile. `on`: their
    node."""

    def make(profile: ClusterProfile) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for one in specs:
            made = anchor(one, profile)
            beside = manifests.beside(one, profile, made)
            found += [body for body in beside if body not in found]
            found.append(manifests.pod(one, profile, (on or node()) if one.node else None, made))
        return found

    return make


def tenants(*projects: ProjectReport, parts: int = 1) -> Callable[[ClusterProfile], list[dict[str, Any]]]:
    """Return a function that returns the objects of these projects for a profile."""
    return lambda profile: list(tenancy.objects(projects, profile, parts))


def launch(profile: ClusterProfile) -> list[dict[str, Any]]:
    """Return the objects of an MPI attempt: anchor and key, then the launcher and one host."""
    gang: dict[str, Any] = {"kind": "mpi", "world_size": 2, "min_pods": 2}
    launcher = spec(**gang, role="launcher", launches=LAUNCHES)
    host = spec(1, **gang, role="worker", is_host=True)
    made = anchor(launcher, profile)
    key = manifests.launch_key(launcher, profile, made, "PRIVATE", "PUBLIC")
    return [manifests.anchor(launcher, profile), key, *pods(launcher, host)(profile)]


LAUNCHES = tuple(GangMember(rank, pod_name(JOB, 1, rank), f"dgx{rank + 1}", (0,)) for rank in range(2))
ELASTIC: dict[str, Any] = {
    "kind": "elastic",
    "has_stable_names": True,
    "kind_env": {"TRAINYARD_MIN_WORKERS": "1", "TRAINYARD_MAX_WORKERS": "4", "workers": "2"},
    "env": {"workers": "9"},
}
GOLDENS: dict[str, Golden] = {
    "anchor": Golden(RESTRICTED, lambda profile: [manifests.anchor(spec(), profile)]),
    "tombstone": Golden(
        RESTRICTED, lambda profile: [manifests.tombstone(pod_name(JOB, 1, 0), "team-a", profile)]
    ),
    "train": Golden(
        RESTRICTED,
        pods(spec(command=("sh", "-c", "echo $$ $(TRAINYARD_RANK)"), args=("a",), working_dir="/code")),
    ),
    "interactive": Golden(
        RESTRICTED,
        pods(
            spec(
                kind="interactive",
                is_preemptible=False,
                ports=(8888, 6006),
                env={"TOKEN": "a$(b)c", "HOME": "/scratch", "TRAINYARD_RANK": "7"},
                secret_env={"AWS_SECRET": SecretValue("aws", "key")},
                labels={"purpose": "demo", "kai.scheduler/queue": "other", "note": "two words"},
            )
        ),
    ),
    "cpus-only": Golden(RESTRICTED, pods(spec(devices=(), milli_cpus=500, grace_seconds=0))),
    "gang": Golden(
        RESTRICTED, pods(*(spec(rank, world_size=2, min_pods=2, large_shm=True) for rank in (0, 1)))
    ),
    "elastic": Golden(
        RESTRICTED, pods(*(spec(rank, **ELASTIC, world_size=2, min_pods=2) for rank in (0, 1)))
    ),
    "elastic-alone": Golden(RESTRICTED, pods(spec(**ELASTIC))),
    "extra-resources": Golden(
        RESTRICTED, pods(spec(extra_resources={"vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "5120Mi"}))
    ),
    "work-claim": Golden(
        replace(RESTRICTED, work_storage_class="fast", work_size="100Gi", work_access_mode="ReadWriteMany"),
        pods(spec()),
    ),
    "site": Golden(
        replace(
            RESTRICTED,
            images={"train": "mirror.example/train:2"},
            image_pull_secrets=("site",),
            image_pull_policy="Always",
            node_selector={"team": "ml"},
            runtime_class="nvidia",
            service_account="jobs",
            scheduler_name="bin-packing",
            env={"NCCL_SOCKET_IFNAME": "eth0"},
            pod_labels={"cost": "research"},
            pod_annotations={"sidecar.istio.io/inject": "false"},
            shm_mib=64,
        ),
        pods(spec(image="train:7", image_pull_secrets=("mine", "site"), large_shm=True)),
    ),
    "spot-pool": Golden(replace(RESTRICTED, spot_pools=("spot",)), pods(spec(), on=node(pool="spot"))),
    "baseline": Golden(BASELINE, pods(spec())),
    "privileged": Golden(PRIVILEGED, pods(spec())),
    "time-sliced": Golden(
        RESTRICTED,
        pods(
            spec(devices=(DeviceShare(1, 300, 24576),)),
            on=node(device_parts=4, labels={names.GPU_RESOURCE: "nvidia.com/gpu.shared"}),
        ),
    ),
    "mps": Golden(
        RESTRICTED,
        pods(
            spec(devices=(DeviceShare(1, 200, 16384),)),
            on=node(device_parts=4, is_one_part_per_pod=True, labels={names.SHARING_STRATEGY: "mps"}),
        ),
    ),
    "placed-by-the-cluster": Golden(
        replace(RESTRICTED, scheduler=KAI, pool_label="pool", spot_pools=("spot",)),
        pods(spec(node="", node_pools=("spot", "default"))),
    ),
    "launcher": Golden(RESTRICTED, launch),
    "project": Golden(RESTRICTED, tenants(TEAM)),
    "project-open": Golden(
        replace(PRIVILEGED, network_policy=False), tenants(replace(TEAM, limit_milli_gpus=None))
    ),
    "project-with-metadata": Golden(replace(RESTRICTED, metadata_access=True), tenants(TEAM)),
    "project-shared-gpus": Golden(RESTRICTED, tenants(replace(TEAM, quota_milli_gpus=2500), parts=4)),
}


def text_of(golden: Golden) -> str:
    """Return the objects of a case as YAML, as in its file."""
    made = golden.make(golden.profile)
    return yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, width=110)


def path_of(name: str) -> Path:
    return GOLDEN / f"{name}.yaml"


class _Dumper(yaml.SafeDumper):
    """Writes equal parts in full instead of as YAML references."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main() -> None:
    for file in GOLDEN.glob("*.yaml"):
        file.unlink()
    for name, golden in GOLDENS.items():
        path_of(name).write_text(text_of(golden))


if __name__ == "__main__":
    main()
