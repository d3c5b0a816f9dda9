"""Every object that we make is taken by a real API server, with its admission and the pod security of its namespace."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from controlplane.engines.kubernetes import names, tenancy
from controlplane.kubernetes_api.names import FIELD_MANAGER
from tests.kube import APPLY, KubeCluster
from tests.pure.kubernetes.goldens import GOLDENS, RESTRICTED, TEAM, Golden, path_of
from tests.waiting import wait_until

Objects = list[dict[str, Any]]


@pytest.fixture(scope="module")
def place(kube: KubeCluster) -> Iterator[str]:
    """A prefix for this run's namespaces, with the priority classes that pods name."""
    for body in tenancy.priority_classes(RESTRICTED):
        kube.must("PATCH", f"{names.path_of(body)}?fieldManager=test&force=true", body, kind=APPLY)
    prefix = f"dry-{secrets.token_hex(3)}-"
    yield prefix
    for namespace in kube.must("GET", "/api/v1/namespaces")["items"]:
        if namespace["metadata"]["name"].startswith(prefix):
            kube.api("DELETE", f"/api/v1/namespaces/{namespace['metadata']['name']}")


def objects_of(name: str, place: str) -> Objects:
    """A golden file's objects, in namespaces of this run."""
    namespace = GOLDENS[name].profile.namespace_of(TEAM.name)
    return list(yaml.safe_load_all(path_of(name).read_text().replace(namespace, place + namespace)))


def make_namespace(kube: KubeCluster, golden: Golden, place: str) -> None:
    body = tenancy.namespace(TEAM.name, golden.profile)
    body["metadata"]["name"] = place + body["metadata"]["name"]
    path = f"/api/v1/namespaces/{body['metadata']['name']}"
    kube.must("PATCH", f"{path}?fieldManager=test&force=true", body, kind=APPLY)
    accounts = f"{path}/serviceaccounts"
    for account in filter(None, (golden.profile.service_account,)):
        kube.api("POST", accounts, {"metadata": {"name": account}})
    wait_until(lambda: kube.api("GET", f"{accounts}/default")[0] == 200, what="the namespace's account")


def paths_of(body: dict[str, Any]) -> tuple[str, str]:
    """Collection and object."""
    return names.list_path(body["kind"], body["metadata"].get("namespace", "")), names.path_of(body)


@pytest.mark.parametrize("name", GOLDENS)
def test_a_real_api_server_takes_it(kube: KubeCluster, place: str, name: str):
    make_namespace(kube, GOLDENS[name], place)
    if GOLDENS[name].profile.runtime_class:
        runtime = {"metadata": {"name": GOLDENS[name].profile.runtime_class}, "handler": "test"}
        kube.api("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime)
    for body in objects_of(name, place):
        collection, path = paths_of(body)
        status, answer = kube.api(
            "PATCH", f"{path}?fieldManager={FIELD_MANAGER}&force=true&dryRun=All", body, kind=APPLY
        )
        assert status in (200, 201), f"{body['kind']}: {answer}"
        query = f"{collection}?dryRun=All&fieldValidation=Strict"
        status, answer = kube.api("POST", query, body)
        assert status == 201 or answer["reason"] == "AlreadyExists", f"{body['kind']}: {answer}"


def test_what_it_would_not_take_is_refused(kube: KubeCluster, place: str):
    """So that the test above says something: one word more, and the server says no."""
    make_namespace(kube, GOLDENS["train"], place)
    (pod,) = objects_of("train", place)
    collection, _ = paths_of(pod)
    misspelt = {**pod, "spec": {**pod["spec"], "restartpolicy": "Never"}}
    assert kube.api("POST", f"{collection}?dryRun=All&fieldValidation=Strict", misspelt)[0] == 400
    open_one = {**pod, "spec": {**pod["spec"], "hostNetwork": True}}
    status, answer = kube.api("POST", f"{collection}?dryRun=All", open_one)
    assert (status, "violates PodSecurity" in answer["message"]) == (403, True)
