"""The Helm chart: accepted by a real API server under pod security `restricted`, with the rights used and no more."""

from __future__ import annotations

import copy
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from controlplane.engines.kubernetes import rbac, tenancy
from controlplane.engines.kubernetes.config import profile_from
from controlplane.engines.kubernetes.settings import parse_settings
from tests.kube import KubeCluster
from tests.kubernetes.chart import (
    ADDRESS,
    CHART,
    VALUES,
    ChartRefused,
    Raw,
    helm,
    of_kind,
    pods_of,
    render,
)
from tests.waiting import patience, wait_until
from tools.kube import build

MONITORING = {"ServiceMonitor", "PrometheusRule"}
RULES_ON = (ADDRESS, "monitoring.rules.enabled=true")


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    try:
        build.ready()
    except build.CannotBuild as reason:
        pytest.skip(f"no helm: {reason}")


@pytest.fixture
def namespace(kube: KubeCluster) -> Iterator[str]:
    """A new namespace that takes only pods of the standard `restricted`."""
    name = f"chart-{secrets.token_hex(3)}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    kube.must("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_until(lambda: kube.api("GET", account)[0] == 200, what="the namespace's service account")
    yield name
    kube.must("DELETE", f"/api/v1/namespaces/{name}")


@pytest.mark.parametrize("values", [None, *VALUES], ids=lambda path: path.stem if path else "defaults")
def test_helm_finds_nothing_to_complain_of(values: Path | None) -> None:
    words = [f"--values={values}"] if values else []
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), f"--set={ADDRESS}", *words)


@pytest.mark.parametrize("values", [None, *VALUES], ids=lambda path: path.stem if path else "defaults")
def test_the_api_server_takes_every_object(kube: KubeCluster, namespace: str, values: Path | None) -> None:
    objects = render(*([values] if values else []), namespace=namespace)
    # monitoring needs the Prometheus operator's definitions, which are not here
    said = kube.apply(yaml.safe_dump_all(one for one in objects if one["kind"] not in MONITORING))
    assert "serverside-applied" in said
    assert "Warning" not in said  # of pod security, of fields that go
    for name, template in pods_of(objects).items():
        status, answer = try_pod(kube, namespace, name, template)
        assert status == 201, answer


def test_the_namespace_would_refuse_a_pod_with_more_rights(kube: KubeCluster, namespace: str) -> None:
    objects = render(namespace=namespace)
    kube.apply(yaml.safe_dump_all(of_kind(objects, "ServiceAccount")))
    for name, template in pods_of(objects).items():
        loose = copy.deepcopy(template)
        del loose["spec"]["containers"][0]["securityContext"]["capabilities"]
        status, answer = try_pod(kube, namespace, name, loose)
        assert (status, "unrestricted capabilities" in answer["message"]) == (403, True)


def try_pod(kube: KubeCluster, namespace: str, name: str, template: Raw) -> tuple[int, Raw]:
    """What the API server says to this pod, without making it."""
    body = {"metadata": {**template["metadata"], "name": f"{name}-try"}, "spec": template["spec"]}
    return kube.api("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mpi_operator": False},
        {"mpi_operator": True},
        {"scheduler": "kai"},
        {"scheduler": "kai", "mpi_operator": True},
        {"prometheus": {"url": "https://prometheus.example.org"}},
        {"prometheus": {"namespace": "monitoring", "service": "prometheus", "port": 9090}},
    ],
    ids=str,
)
def test_the_role_is_what_the_engine_needs_both_ways(settings: Raw) -> None:
    sets = [f"cluster.scheduler={settings.get('scheduler', 'planner')}"]
    if "mpi_operator" in settings:
        sets += [f"cluster.settings.mpi_operator={str(settings['mpi_operator']).lower()}"]
    sets += [
        f"cluster.settings.prometheus.{key}={value}" for key, value in settings.get("prometheus", {}).items()
    ]
    role, *_ = of_kind(render(sets=(ADDRESS, *sets)), "ClusterRole")
    granted = {
        (group, resource, verb, *rule.get("resourceNames", ()))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = {
        (rule.group, rule.resource, verb, *rule.names)
        for rule in rbac.needed_for(profile_from(settings))
        for verb in rule.verbs
    }
    assert granted == needed
    assert "*" not in {part for words in granted for part in words}


def test_users_of_kubectl_get_roles_that_are_bound_and_never_held() -> None:
    _, of_web, *roles = of_kind(render(), "ClusterRole")
    assert of_web["metadata"]["name"].endswith("-web")
    assert roles == tenancy.cluster_roles()
    assert "aggregationRule" not in str(roles)
    own, _ = of_kind(render(sets=(ADDRESS, "rbac.projectRoles=false")), "ClusterRole")
    assert [rule["verbs"] for rule in own["rules"] if "secrets" in rule["resources"]] == [["create"]]


def test_web_pods_enter_pods_and_make_or_delete_none() -> None:
    objects = render()
    accounts = {
        name: template["spec"].get("serviceAccountName", "") for name, template in pods_of(objects).items()
    }
    assert accounts["yard-trainyard-web"] == f"{accounts['yard-trainyard-worker']}-web"
    bindings = of_kind(objects, "ClusterRoleBinding")
    bound = {one["subjects"][0]["name"]: one["roleRef"]["name"] for one in bindings}
    roles = {one["metadata"]["name"]: one["rules"] for one in of_kind(objects, "ClusterRole")}
    of_web = {(rule["resources"][0], *rule["verbs"]) for rule in roles[bound[accounts["yard-trainyard-web"]]]}
    assert of_web == {("pods", "list"), ("pods/exec", "get", "create"), ("pods/portforward", "get", "create")}


def test_nothing_but_web_and_workers_has_a_token_of_the_cluster() -> None:
    mounted = {
        name: template["spec"]["automountServiceAccountToken"] for name, template in pods_of(render()).items()
    }
    assert {name for name, is_mounted in mounted.items() if is_mounted} == {
        "yard-trainyard-web",
        "yard-trainyard-worker",
        "yard-trainyard-tasks",  # checks clusters and removes projects
    }
    assert len(mounted) == 4


def test_pages_of_jobs_have_a_wildcard_host_where_one_is_given() -> None:
    sets = (ADDRESS, "ingress.enabled=true", "ingress.tlsSecret=own")
    hosts = [rule["host"] for rule in of_kind(render(sets=sets), "Ingress")[0]["spec"]["rules"]]
    assert hosts == ["yard.example.org"]
    more = (*sets, "servicesHost=jobs.example.org", "ingress.servicesTlsSecret=wild")
    objects = render(sets=more)
    spec = of_kind(objects, "Ingress")[0]["spec"]
    assert [rule["host"] for rule in spec["rules"]] == ["yard.example.org", "*.jobs.example.org"]
    assert spec["tls"] == [
        {"hosts": ["yard.example.org"], "secretName": "own"},
        {"hosts": ["*.jobs.example.org"], "secretName": "wild"},
    ]
    variables = pods_of(objects)["yard-trainyard-web"]["spec"]["containers"][0]["env"]
    assert {"name": "TRAINYARD_SERVICES_HOST", "value": "jobs.example.org"} in variables


def test_one_node_holds_web_and_worker_where_the_log_store_is_of_one_node() -> None:
    shared = pods_of(render())
    assert all("affinity" not in template["spec"] for template in shared.values())
    single = pods_of(render(sets=(ADDRESS, "logs.accessMode=ReadWriteOnce")))
    assert [name for name, template in single.items() if "affinity" in template["spec"]] == [
        "yard-trainyard-web",
        "yard-trainyard-worker",
    ]


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ((), "publicUrl"),
        (("publicUrl=yard.example.org",), "/publicUrl"),
        ((ADDRESS, "wev.replicas=3"), "'wev' not allowed"),
        ((ADDRESS, "web.replicas=many"), "/web/replicas"),
        ((ADDRESS, "logs.accessMode=ReadOnlyMany"), "/logs/accessMode"),
        ((ADDRESS, "cluster.scheduler=volcano"), "/cluster/scheduler"),
        ((ADDRESS, "image.digest=abc"), "/image/digest"),
        ((ADDRESS, "servicesHost=https://jobs.example.org"), "/servicesHost"),
        ((ADDRESS, "servicesHost=*.jobs.example.org"), "/servicesHost"),
    ],
)
def test_a_value_that_is_none_is_refused(sets: tuple[str, ...], words: str) -> None:
    with pytest.raises(ChartRefused, match=words):
        render(sets=sets)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_provider_s_settings_are_ones_that_a_cluster_takes(values: Path) -> None:
    settings = yaml.safe_load(values.read_text())["cluster"]["settings"]
    assert parse_settings(settings)["work_access_mode"] == "ReadWriteMany"


def test_the_image_is_named_by_tag_or_by_digest() -> None:
    digest = f"sha256:{'a' * 64}"
    images = {
        template["spec"]["containers"][0]["image"]
        for template in pods_of(render(sets=(ADDRESS, f"image.digest={digest}"))).values()
    }
    assert images == {f"registry.example.org/trainyard/control-plane@{digest}"}


def test_prometheus_understands_every_rule_and_alerts_as_meant(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: apt-get install prometheus")
    (rule,) = of_kind(render(sets=RULES_ON), "PrometheusRule")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    cases = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text())
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "cases.yaml"]):
        said = subprocess.run(
            [promtool, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )
        assert said.returncode == 0, said.stdout + said.stderr
    alerts = {one["alert"] for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one}
    assert {case["alertname"] for test in cases["tests"] for case in test["alert_rule_test"]} == alerts
