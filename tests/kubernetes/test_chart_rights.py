"""Without a verb of the chart's role the engine is refused in words that name it, and the look at a cluster tells.

That the role suffices is shown by tests/contract, which runs on Kubernetes with these rights alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from controlplane.engines.base import NO_SUCH_POD, NOT_PERMITTED, EngineRefused, PodSpec, ProjectReport
from controlplane.engines.kubernetes import names, tenancy, tenancy_sync
from controlplane.engines.kubernetes.engine import KubernetesEngine
from controlplane.engines.kubernetes.preflight import FAILED, OK, WARNING, Check, check_cluster
from tests.kube import KubeCluster
from tests.kubernetes.chart import engine_kubeconfig, of_kind, pods_of, render

PROJECT = "team-a"
PROJECT_REPORT = ProjectReport(PROJECT, 1000, 2000, 1000)
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
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
        engine.sync_projects((PROJECT_REPORT,))
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
    assert rights == (OK, "Trainyard's account has all the rights that it needs.")


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
    assert (FAILED, f"Trainyard's account may not {verb} {resource}") in [
        (outcome, message[: len(f"Trainyard's account may not {verb} {resource}")])
        for outcome, message in looked_at(kube, (verb, resource))
    ]


@pytest.mark.parametrize(
    "without",
    [("list", "persistentvolumeclaims"), ("delete", "persistentvolumeclaims"), ("delete", "namespaces")],
    ids=" ".join,
)
def test_what_may_not_be_removed_is_said_by_name(
    kube: KubeCluster, tmp_path: Path, without: tuple[str, str]
) -> None:
    job = "00000000-0000-4000-8000-000000000001"
    with engine_without(kube, tmp_path, without) as engine:
        engine.sync_projects((PROJECT_REPORT,))
        here = f"/api/v1/namespaces/{engine._profile.namespace_of(PROJECT)}/persistentvolumeclaims"
        labels = {names.INSTALLATION: engine._profile.installation, names.JOB_ID: job}
        kube.must("POST", here, {"metadata": {"name": "kept", "labels": labels}, "spec": CLAIM})
        with pytest.raises(EngineRefused, match=" ".join(without)) as refused:
            remove(engine, job)
    assert refused.value.code == NOT_PERMITTED


def remove(engine: KubernetesEngine, job: str) -> None:
    """The job and the project."""
    engine.forget_job(job)
    engine.forget_project(PROJECT)


@pytest.mark.parametrize("without", [("list", "configmaps"), ("delete", "configmaps")], ids=" ".join)
def test_projects_are_kept_where_leftovers_cannot_be_swept(
    kube: KubeCluster, tmp_path: Path, without: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenancy_sync, "GRACE_SECONDS", -60)
    with engine_without(kube, tmp_path, without) as engine:
        namespace = f"/api/v1/namespaces/{engine._profile.namespace_of(PROJECT)}"
        name = engine._profile.installation
        kube.must("POST", "/api/v1/namespaces", {"metadata": {"name": f"{name}-left"}})
        anchor = {"metadata": {"name": "left", "labels": {names.INSTALLATION: name}}}
        kube.must("POST", f"/api/v1/namespaces/{name}-left/configmaps", anchor)
        for _ in range(2):  # the second turn comes before another sweep is due
            with pytest.raises(EngineRefused, match=" ".join(without)) as refused:
                engine.sync_projects((PROJECT_REPORT,))
            assert refused.value.code == NOT_PERMITTED
        assert kube.api("GET", namespace)[0] == 200


@contextmanager
def engine_without(
    kube: KubeCluster, state_dir: Path, without: tuple[str, str]
) -> Iterator[KubernetesEngine]:
    """An installation of its own, whose account lacks a verb on a resource."""
    name = f"r{secrets.token_hex(3)}"
    credentials = {"kubeconfig": engine_kubeconfig(kube, without)}
    settings = {"installation": name, "namespace_prefix": f"{name}-", "credentials": credentials}
    engine = KubernetesEngine(settings, state_dir)
    try:
        yield engine
    finally:
        engine.close()


@pytest.mark.parametrize(
    "without",
    [("list", "rolebindings"), ("patch", "rolebindings"), ("bind", "clusterroles"), ("get", "clusterroles")],
)
def test_jobs_run_where_users_of_kubectl_can_get_no_rights(
    kube: KubeCluster, tmp_path: Path, without: tuple[str, str]
) -> None:
    use(kube, tmp_path, without)
    ((outcome, message),) = looked_at(kube, without)
    assert (outcome, message[: message.index(".")]) == (
        WARNING,
        f"Trainyard's account may not {' '.join(without)}",
    )


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
