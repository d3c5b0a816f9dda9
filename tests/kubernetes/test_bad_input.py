"""What is given to us wrong or breaks while we use it, end to end: `make up`, REST, and a real API server.

Each ends in a reason that a user reads in an answer, and no job is lost for it.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kube import KubeCluster, gpu_labels
from tests.kubernetes.webhook import refusing_webhook
from tests.servers import ControlPlane, control_plane, free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}

Raw = dict[str, Any]


def prefix_of(cluster: str) -> str:
    return f"c{cluster[-6:]}-"


class Site:
    """A control plane and clusters that it is attached to: all of the same API server, each with a node of its own."""

    def __init__(self, plane: ControlPlane, kube: KubeCluster) -> None:
        self.plane, self.kube = plane, kube

    def attach(self, kubeconfig: str, name: str = "") -> Raw:
        """Have a cluster looked at; what it is after that. One that is good gets a node."""
        name = name or f"cluster-{secrets.token_hex(3)}"
        settings = {
            "node_selector": {"site": name},
            "namespace_prefix": prefix_of(name),
            "default_image": "x",
        }
        body = {"name": name, "engine": "kubernetes", "kubeconfig": kubeconfig, "settings": settings}
        self.must("POST", "clusters", body)
        path = f"clusters/{name}"
        wait_until(lambda: not self.must("GET", path)["status"]["is_checking"], 40, "the look at the cluster")
        found: Raw = self.must("GET", path)
        if found["status"]["state"] == "attached":
            self.kube.add_node(f"node-{name}", gpus=4, labels={**gpu_labels(32768, "default"), "site": name})
            wait_until(lambda: self.must("GET", f"nodes?cluster={name}")["results"], 30, "its node")
        return found

    def project(self, cluster: str) -> str:
        name = f"team-{secrets.token_hex(3)}"
        self.must("POST", "projects", {"name": name, "cluster": cluster, "gpu_quota": 4})
        return name

    def submit(self, project: str) -> str:
        body = {
            "name": f"job-{secrets.token_hex(3)}",
            "kind": "train",
            "gpus": 1,
            "command": ["sleep", "infinity"],
        }
        identity: str = self.must("POST", f"projects/{project}/jobs", body)["id"]
        return identity

    def status(self, job: str) -> Raw:
        status: Raw = self.must("GET", f"jobs/{job}")["status"]
        return status

    def wait(self, job: str, is_so: Callable[[Raw], bool], seconds: float = 60) -> Raw:
        """The job's status, once it is so."""

        def found() -> Raw | None:
            status = self.status(job)
            return status if is_so(status) else None

        try:
            status = wait_until(found, seconds, "the job's reason")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.status(job)}") from error
        assert status is not None
        return status

    def wait_running(self, job: str) -> Raw:
        return self.wait(job, lambda status: status["state"] == "running")

    def must(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.plane.call(method, f"/api/v1/{path}", body)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer


@pytest.fixture(scope="module")
def site(kube: KubeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with control_plane(tmp_path_factory.mktemp("site"), {"TRAINYARD_CLUSTERS": "memory:m=1x1024"}) as plane:
        site = Site(plane, kube)
        yield site
        plane.stop_jobs()


@pytest.fixture(scope="module")
def cluster(site: Site) -> str:
    found = site.attach(site.kube.kubeconfig_text)
    assert found["status"]["state"] == "attached", found["status"]["checks"]
    name: str = found["name"]
    return name


def kubeconfig_of(server: str, user: Raw) -> str:
    named = {"name": "x"}
    config = {
        "current-context": "x",
        "clusters": [named | {"cluster": {"server": server}}],
        "users": [named | {"user": user}],
        "contexts": [named | {"context": {"cluster": "x", "user": "x"}}],
    }
    return json.dumps(config)


def expired_token() -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 1_000_000_000}).encode()).decode().rstrip("=")
    return f"e30.{claims}.signature"


@pytest.mark.parametrize(
    ("server", "user", "words"),
    [
        ("http://127.0.0.1:{port}", {"token": "x"}, "cannot be reached"),
        ("{us}", {"token": "x"}, "Trainyard itself"),
        ("https://127.0.0.1:1", {"exec": {"command": "login"}}, "runs a program to log in"),
        ("https://127.0.0.1:1", {"token": expired_token()}, "ended on 2001-09-09"),
    ],
    ids=["nowhere", "itself", "exec", "expired"],
)
def test_a_kubeconfig_that_is_no_good_is_refused_in_words(
    site: Site, server: str, user: Raw, words: str
) -> None:
    address = server.format(port=free_port(), us=site.plane.url)
    status = site.attach(kubeconfig_of(address, user))["status"]
    assert status["state"] == "refused"
    failed = [check["message"] for check in status["checks"] if check["outcome"] == "failed"]
    assert failed
    assert any(words in message for message in failed), failed


def test_a_namespace_of_somebody_else_is_told_by_the_job_and_by_the_cluster(site: Site, cluster: str) -> None:
    name = f"team-{secrets.token_hex(3)}"
    namespace = f"{prefix_of(cluster)}{name}"
    site.kube.must("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    site.must("POST", "projects", {"name": name, "cluster": cluster, "gpu_quota": 4})
    status = site.wait(site.submit(name), lambda status: status["state"] == "failed")
    assert status["reason"]["code"] == "namespace_not_ours"
    assert namespace in status["reason"]["message"]

    def told() -> bool:
        checks = site.must("GET", f"clusters/{cluster}")["status"]["checks"]
        return any(namespace in check["message"] for check in checks if check["outcome"] == "warning")

    wait_until(told, 20, "the cluster to say so")
    site.must("DELETE", f"projects/{name}")
    site.kube.must("DELETE", f"/api/v1/namespaces/{namespace}")


@contextmanager
def guarded(kube: KubeCluster, *objects: tuple[str, Raw]) -> Iterator[None]:
    """Objects of the cluster's admission, for a while."""
    for plural, body in objects:
        kube.must("POST", f"{ADMISSION}/{plural}", body)
    try:
        yield
    finally:
        for plural, body in objects:
            kube.api("DELETE", f"{ADMISSION}/{plural}/{body['metadata']['name']}")


def hook_of(cluster: str, project: str, client: Raw) -> Raw:
    """A configuration that asks this webhook about the pods of a project."""
    name = f"guard-{secrets.token_hex(3)}.example.org"
    where = {"matchLabels": {"kubernetes.io/metadata.name": f"{prefix_of(cluster)}{project}"}}
    hook = {
        "name": name,
        "clientConfig": client,
        "rules": [PODS],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
        "namespaceSelector": where,
    }
    return {"metadata": {"name": name}, "webhooks": [hook]}


def refused(site: Site, project: str) -> Raw:
    """The status of a job that failed at once. One that came before the refusal was in force is stopped."""
    found: list[Raw] = []

    def is_in_force() -> bool:
        job = site.submit(project)
        found.append(site.wait(job, lambda status: status["state"] in ("running", "failed")))
        if found[-1]["state"] == "running":  # its GPU is the next one's
            site.must("POST", f"jobs/{job}/stop")
        return bool(found[-1]["state"] == "failed")

    wait_until(is_in_force, 40, "the refusal to count")
    return found[-1]


def test_a_policy_that_refuses_the_pod_fails_the_job_in_its_words(site: Site, cluster: str) -> None:
    project, name = site.project(cluster), f"policy-{secrets.token_hex(3)}"
    site.wait_running(site.submit(project))
    where = {"matchLabels": {"kubernetes.io/metadata.name": f"{prefix_of(cluster)}{project}"}}
    rules: Raw = {"matchConstraints": {"resourceRules": [PODS]}}
    rules |= {"validations": [{"expression": "false", "message": "Pods need a cost centre."}]}
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": where},
    }
    objects = (
        ("validatingadmissionpolicies", {"metadata": {"name": name}, "spec": rules}),
        ("validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": binding}),
    )
    with guarded(site.kube, *objects):
        reason = refused(site, project)["reason"]
    assert reason["code"] == "admission_refused"
    assert "cost centre" in reason["message"]


def test_a_webhook_that_refuses_the_pod_fails_the_job_in_its_words(
    site: Site, cluster: str, tmp_path: Path
) -> None:
    project = site.project(cluster)
    site.wait_running(site.submit(project))
    with refusing_webhook(site.kube, tmp_path, "Pods need an owner's e-mail address.") as client:
        body = hook_of(cluster, project, client)
        with guarded(site.kube, ("validatingwebhookconfigurations", body)):
            reason = refused(site, project)["reason"]
    assert reason["code"] == "admission_refused"
    assert body["metadata"]["name"] in reason["message"]
    assert "an owner's e-mail address" in reason["message"]


def test_a_webhook_that_does_not_answer_keeps_the_job_waiting_until_it_does(site: Site, cluster: str) -> None:
    project = site.project(cluster)
    site.wait_running(site.submit(project))
    body = hook_of(cluster, project, {"url": "https://127.0.0.1:1/never"})
    name = body["metadata"]["name"]
    with guarded(site.kube, ("validatingwebhookconfigurations", body)):
        jobs: list[str] = []

        def is_in_force() -> bool:
            jobs.append(site.submit(project))
            found = site.wait(
                jobs[-1], lambda found: found["state"] == "running" or name in str(found["reason"]), 90
            )
            assert found["state"] in ("queued", "starting", "running")
            return name in str(found["reason"])

        wait_until(is_in_force, 40, "the webhook to count")
    site.wait_running(jobs[-1])


def test_credentials_that_end_while_jobs_run_are_told_and_fail_nothing(site: Site) -> None:
    account = f"yard-{secrets.token_hex(3)}"
    token = site.kube.service_account_token("default", account)
    site.kube.kubectl(
        "create",
        "clusterrolebinding",
        account,
        "--clusterrole=cluster-admin",
        f"--serviceaccount=default:{account}",
    )
    cluster = site.attach(site.kube.kubeconfig_for(token))["name"]
    project = site.project(cluster)
    running = site.submit(project)
    site.wait_running(running)
    site.kube.must("DELETE", f"/api/v1/namespaces/default/serviceaccounts/{account}")
    wait_until(lambda: site.kube.api("GET", "/api/v1/nodes", token=token)[0] == 401, 30, "the token's end")
    late = site.submit(project)
    status = site.wait(late, lambda status: "credentials" in json.dumps(status["reason"]), 60)
    assert status["state"] in ("queued", "starting")
    assert site.status(running)["state"] == "running"
    site.must("PATCH", f"clusters/{cluster}", {"kubeconfig": site.kube.kubeconfig_text})
    site.wait_running(late)
    assert site.status(running)["state"] == "running"
