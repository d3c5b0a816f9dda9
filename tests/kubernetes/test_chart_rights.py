"""Without a verb of the chart's role the engine is refused in words that name it, and the look at a cluster tells.

That the role suffices is shown by tests/contract, which runs on Kubernetes with these rights alone.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
import yaml

from controlplane.engines.base import NO_SUCH_POD, NOT_PERMITTED, EngineRefused, PodSpec, ProjectReport
from controlplane.engines.kubernetes import tenancy
from controlplane.engines.kubernetes.checks import FAILED, OK, WARNING, Check, check_cluster
from controlplane.engines.kubernetes.engine import KubernetesEngine
from tests.kube import KubeCluster
from tests.kubernetes.chart import engine_kubeconfig, of_kind, pods_of, render

PROJECT = "team-a"
ROLES = f"/apis/{tenancy.RBAC}/v1/clusterroles"


def use(
    kube: KubeCluster, state_dir: Path, without: tuple[str, str] | None, kubeconfig: str | None = None
) -> None:
    """Set a project up and start a pod of it, on a fake node, as an installation of its own."""
    name = secrets.token_hex(3)
    node = f"rights-{name}"
    kube.add_node(node)
    settings = {"installation": name, "namespace_prefix": f"r{name}-", "default_image": "none.test/none:1"}
    credentials = {"kubeconfig": kubeconfig or engine_kubeconfig(kube, without)}
    engine = KubernetesEngine({**settings, "credentials": credentials}, state_dir)
    try:
        engine.sync_projects((ProjectReport(PROJECT, 1000, 2000, 1000),))
        job = "00000000-0000-4000-8000-000000000001"
        engine.start(PodSpec(f"{job}-1-0", job, "job", PROJECT, 1, 0, node, command=("true",)))
    finally:
        engine.close()
        kube.must("DELETE", f"/api/v1/nodes/{node}")


def test_a_way_into_a_pod_is_found_with_the_rights_of_web_pods(kube: KubeCluster, tmp_path: Path) -> None:
    objects = render(namespace="chart-rights-web")
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "chart-rights-web"}}
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    kube.apply(yaml.safe_dump_all([home, *(one for kind in kinds for one in of_kind(objects, kind))]))
    account = pods_of(objects)["yard-trainyard-web"]["spec"]["serviceAccountName"]
    kubeconfig = kube.kubeconfig_for(kube.service_account_token("chart-rights-web", account))
    engine = KubernetesEngine({"credentials": {"kubeconfig": kubeconfig}}, tmp_path)
    job = "00000000-0000-4000-8000-000000000001"
    try:
        with pytest.raises(EngineRefused) as refused:
            engine.open_shell(f"{job}-1-0", 80, 24)
        assert refused.value.code == NO_SUCH_POD
        with pytest.raises(EngineRefused) as forbidden:
            engine.forget_project("team-a")
        assert forbidden.value.code == NOT_PERMITTED
    finally:
        engine.close()


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


@pytest.mark.parametrize(
    "without",
    [("list", "rolebindings"), ("patch", "rolebindings"), ("bind", "clusterroles"), ("get", "clusterroles")],
)
def test_jobs_run_where_users_of_kubectl_can_get_no_rights(
    kube: KubeCluster, tmp_path: Path, without: tuple[str, str]
) -> None:
    use(kube, tmp_path, without)
    ((outcome, message),) = looked_at(kube, without)
    assert (outcome, message[: message.index(".")]) == (WARNING, f"We may not {' '.join(without)}")


def test_the_roles_are_made_by_an_admin_and_else_the_look_says_who_makes_them(
    kube: KubeCluster, tmp_path: Path
) -> None:
    chart, admin = engine_kubeconfig(kube), kube.kubeconfig_text
    for name in tenancy.ROLE_NAMES:
        kube.must("DELETE", f"{ROLES}/{name}")
    use(kube, tmp_path, without=None)
    told = found_in(chart, "project_roles")
    assert [check.outcome for check in told] == [WARNING]
    assert "kubectl apply --server-side -f deploy/rbac.yaml" in told[0].message
    assert [check.outcome for check in found_in(admin, "project_roles")] == [OK]
    assert kube.api("GET", f"{ROLES}/trainyard-owner")[0] == 404  # a look changes nothing
    use(kube, tmp_path, without=None, kubeconfig=admin)
    assert kube.must("GET", f"{ROLES}/trainyard-owner")["rules"] == tenancy.cluster_roles()[-1]["rules"]
    assert [check.outcome for check in found_in(chart, "project_roles")] == [OK]


def looked_at(kube: KubeCluster, without: tuple[str, str] | None) -> list[tuple[str, str]]:
    """What the look at a cluster says of our rights."""
    found = found_in(engine_kubeconfig(kube, without), "rights")
    return [(check.outcome, check.message) for check in found]


def found_in(kubeconfig: str, name: str) -> list[Check]:
    found = check_cluster({"credentials": {"kubeconfig": kubeconfig}})
    return [check for check in found if check.name == name]
