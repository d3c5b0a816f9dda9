"""Without a verb of the chart's role the engine is refused in words that name it, and the look at a cluster tells.

That the role suffices is shown by tests/contract, which runs on Kubernetes with these rights alone.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from controlplane.engines.base import NOT_PERMITTED, EngineRefused, PodSpec, ProjectReport
from controlplane.engines.kubernetes.checks import FAILED, OK, check_cluster
from controlplane.engines.kubernetes.engine import KubernetesEngine
from tests.kube import KubeCluster
from tests.kubernetes.chart import engine_kubeconfig

PROJECT = "team-a"


def use(kube: KubeCluster, state_dir: Path, without: tuple[str, str] | None) -> None:
    """Set a project up and start a pod of it, on a fake node, as an installation of its own."""
    name = secrets.token_hex(3)
    node = f"rights-{name}"
    kube.add_node(node)
    settings = {"installation": name, "namespace_prefix": f"r{name}-", "default_image": "none.test/none:1"}
    credentials = {"kubeconfig": engine_kubeconfig(kube, without)}
    engine = KubernetesEngine({**settings, "credentials": credentials}, state_dir)
    try:
        engine.sync_projects((ProjectReport(PROJECT, 1000, 2000, 1000),))
        job = "00000000-0000-4000-8000-000000000001"
        engine.start(PodSpec(f"{job}-1-0", job, "job", PROJECT, 1, 0, node, command=("true",)))
    finally:
        engine.close()
        kube.must("DELETE", f"/api/v1/nodes/{node}")


def test_with_the_chart_s_rights_nothing_is_refused(kube: KubeCluster, tmp_path: Path) -> None:
    use(kube, tmp_path, without=None)
    (rights,) = looked_at(kube, None)
    assert rights == (OK, "We may do all that is needed.")


@pytest.mark.parametrize(
    ("verb", "resource", "words"),
    [
        ("create", "namespaces", "create namespaces"),
        ("patch", "resourcequotas", "patch resourcequotas"),
        ("patch", "networkpolicies", "patch networkpolicies"),
        ("patch", "priorityclasses", "patch priorityclasses"),
        ("list", "rolebindings", "list rolebindings"),
        ("create", "configmaps", "create configmaps"),
        ("create", "pods", "create pods"),
    ],
)
def test_without_one_verb_it_is_refused_by_name(
    kube: KubeCluster, tmp_path: Path, verb: str, resource: str, words: str
) -> None:
    with pytest.raises(EngineRefused, match=words) as refused:
        use(kube, tmp_path, without=(verb, resource))
    assert refused.value.code == NOT_PERMITTED
    assert (FAILED, f"We may not {verb} {resource}") in [
        (outcome, message[: len(f"We may not {verb} {resource}")])
        for outcome, message in looked_at(kube, (verb, resource))
    ]


def test_a_right_that_projects_roles_grant_must_be_ours(kube: KubeCluster, tmp_path: Path) -> None:
    with pytest.raises(EngineRefused, match="attempting to grant RBAC permissions not currently held"):
        use(kube, tmp_path, without=("watch", "events"))


def looked_at(kube: KubeCluster, without: tuple[str, str] | None) -> list[tuple[str, str]]:
    """What the look at a cluster says of our rights."""
    found = check_cluster({"credentials": {"kubeconfig": engine_kubeconfig(kube, without)}})
    return [(check.outcome, check.message) for check in found if check.name == "rights"]
