"""The look at a cluster: on a real one as its admin and as nobody much, and at what is none."""

import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import orjson
import pytest

from controlplane.engines.kubernetes import preflight
from controlplane.engines.kubernetes.preflight import FAILED, OK, WARNING, Check, check_cluster
from controlplane.engines.kubernetes.rbac import NEEDED
from tests.kube import KubeCluster
from tests.servers import free_port
from tests.serving import serving


def look(kubeconfig: str, **settings) -> dict[str, Check]:
    found = check_cluster({"credentials": {"kubeconfig": kubeconfig}, **settings})
    return {check.name: check for check in found}


@pytest.fixture(scope="module")
def gpu_node(kube: KubeCluster) -> Iterator[KubeCluster]:
    shared = {
        "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.sharing-strategy": "mps",
        "nvidia.com/gpu.memory": "81920",
    }
    kube.add_node("checked", gpus=8, labels=shared)
    yield kube
    kube.must("DELETE", "/api/v1/nodes/checked")


def test_an_admin_of_a_plain_cluster(gpu_node):
    found = look(gpu_node.kubeconfig_text)
    assert [check.name for check in found.values() if check.outcome == FAILED] == []
    assert "v1.34" in found["reachable"].message
    assert found["identity"].outcome == found["clock"].outcome == found["rights"].outcome == OK
    # other tests may have left nodes of theirs in the cluster
    counted = re.match(r"(\d+) of nvidia\.com/gpu on \d+ of", found["gpus"].message)
    assert counted is not None
    assert int(counted[1]) >= 8
    assert "mps" in found["sharing"].message
    assert found["storage"].outcome == WARNING
    assert "lost" in found["storage"].without_it
    assert found["caches"].outcome == found["snapshots"].outcome == found["prometheus"].outcome == WARNING
    assert "own launcher" in found["mpi_launcher"].message


def test_what_the_settings_ask_for_and_is_not_there(gpu_node):
    found = look(
        gpu_node.kubeconfig_text,
        scheduler="kai",
        work_storage_class="not-there",
        cache_storage_class="not-there",
        mpi_operator=True,
        gpu_resource="amd.com/gpu",
        prometheus={"url": f"http://127.0.0.1:{free_port()}"},
    )
    assert {check.name for check in found.values() if check.outcome == FAILED} == {
        "storage",
        "caches",
        "mpi_operator",
        "kai",
    }
    assert found["gpus"].outcome == found["prometheus"].outcome == WARNING
    assert "nvidia.com/gpu" in found["gpus"].message


def test_an_account_without_rights_is_told_each_that_it_lacks(kube):
    kube.api("POST", "/api/v1/namespaces", {"metadata": {"name": "checked"}})
    token = kube.service_account_token("checked", "weak")
    found = check_cluster({"credentials": {"kubeconfig": kube.kubeconfig_for(token)}})
    by_name = {check.name: check for check in found}
    assert by_name["identity"].message == "The cluster knows Trainyard as system:serviceaccount:checked:weak."
    denied = [check for check in found if check.name == "rights"]
    refused = "Trainyard's account may not get, list, watch nodes in all namespaces."
    assert refused in [check.message for check in denied]
    assert {check.outcome for check in denied} == {FAILED, WARNING}
    assert all(check.without_it for check in denied)


def test_the_rights_that_are_asked_for_are_enough_for_every_check(kube):
    """An account with exactly NEEDED passes: the list is in the words of RBAC."""
    kube.api("POST", "/api/v1/namespaces", {"metadata": {"name": "checked"}})
    rules = [
        {
            "apiGroups": [rule.group],
            "resources": [rule.resource],
            "resourceNames": rule.names,
            "verbs": rule.verbs,
        }
        for rule in NEEDED
    ]
    role = {"metadata": {"name": "checked"}, "rules": rules}
    subject = {"kind": "ServiceAccount", "namespace": "checked", "name": "strong"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "checked"}
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    kube.api("POST", roles, role)
    kube.api("POST", f"{roles}bindings".replace("rolesbindings", "rolebindings"), {
        "metadata": {"name": "checked"}, "roleRef": reference, "subjects": [subject],
    })  # fmt: skip
    token = kube.service_account_token("checked", "strong")
    found = look(kube.kubeconfig_for(token))
    assert found["rights"] == Check("rights", OK, "Trainyard's account has all the rights that it needs.")


def test_credentials_that_nobody_knows(kube):
    found = look(kube.kubeconfig_for("wrong"))
    assert list(found) == ["identity"]
    assert "does not accept the credentials" in found["identity"].message


def test_a_kubeconfig_that_is_refused_is_the_only_finding():
    assert [check.name for check in check_cluster({"credentials": {"kubeconfig": "{"}})] == ["credentials"]
    assert check_cluster({})[0].message == "The cluster has no kubeconfig: attach it again with one."


def test_settings_that_cannot_be_read(kube):
    found = look(kube.kubeconfig_text, work_size="a lot")
    assert "/work_size" in found["settings"].message


def kubeconfig_of(server: str) -> str:
    return orjson.dumps({
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "c", "user": {"token": "t"}}],
    }).decode()  # fmt: skip


def test_nobody_at_the_address():
    found = look(kubeconfig_of(f"http://127.0.0.1:{free_port()}"))
    assert found["reachable"].outcome == FAILED
    assert "cannot be reached" in found["reachable"].message


def test_an_address_that_swallows_everything(monkeypatch):
    monkeypatch.setattr(preflight, "SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        found = look(kubeconfig_of(f"http://127.0.0.1:{silent.getsockname()[1]}"))
    assert found["reachable"].outcome == FAILED
    assert "takes more than 2 s" in found["reachable"].message


class Page(BaseHTTPRequestHandler):
    status, body, shift = 404, b"<html>", timedelta()

    def do_GET(self):
        self.send_response_only(self.status)
        self.send_header("Date", f"{datetime.now(UTC) + self.shift:%a, %d %b %Y %H:%M:%S GMT}")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET  # noqa: N815  the name that http.server looks for

    def log_message(self, *_):
        """Nothing is printed."""


def look_at_a_page(**fields) -> dict[str, Check]:
    with HTTPServer(("127.0.0.1", 0), type("OtherPage", (Page,), fields)) as server, serving(server):
        return look(kubeconfig_of(f"http://127.0.0.1:{server.server_port}"))


@pytest.mark.parametrize(
    ("status", "body"), [(404, b"<html>"), (200, b"{}"), (200, b"<html>"), (302, b""), (200, b'["v1"]')]
)
def test_a_page_that_is_no_kubernetes(status, body):
    found = look_at_a_page(status=status, body=body)
    assert [check.outcome for name, check in found.items() if name == "reachable"] == [FAILED]
    assert "Kubernetes" in found["reachable"].message or "JSON" in found["reachable"].message


@pytest.mark.parametrize(
    ("version", "outcome"),
    [("1.34", OK), ("1.34+", OK), ("1.29", FAILED), ("1.60", WARNING), ("2.0", FAILED)],
)
def test_versions(version, outcome):
    major, _, minor = version.partition(".")
    answer = {"major": major, "minor": minor, "gitVersion": f"v{version}.1"}
    assert look_at_a_page(status=200, body=orjson.dumps(answer))["reachable"].outcome == outcome


@pytest.mark.parametrize(("seconds", "outcome"), [(5, OK), (-300, WARNING), (3600, FAILED)])
def test_clocks_that_differ(seconds, outcome):
    version = {
        "major": "1",
        "minor": "34",
        "gitVersion": "v1.34.1",
        "status": {"userInfo": {"username": "me"}},
    }
    found = look_at_a_page(status=200, body=orjson.dumps(version), shift=timedelta(seconds=seconds))
    assert found["clock"].outcome == outcome
