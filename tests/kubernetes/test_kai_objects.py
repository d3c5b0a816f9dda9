"""What we make for KAI is taken by its own definitions, on a real API server. KAI itself is not needed."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from controlplane.engines.kubernetes import kai, names, tenancy
from tests.kube import APPLY, KubeCluster
from tests.kubernetes import kai_rig
from tests.pure.kubernetes.kai_goldens import GOLDENS, PROFILE
from tests.waiting import wait_until

JSON = "application/json"
WHY_NOT = kai_rig.why_no_definitions()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def namespace(kube: KubeCluster) -> str:
    """A namespace with what pods of ours need there, on a cluster that knows KAI's kinds."""
    kai_rig.install(kube)
    for body in tenancy.priority_classes(PROFILE):
        kube.must("PATCH", f"{tenancy.wanted(body).path}?fieldManager=test&force=true", body, kind=APPLY)
    name = f"dry-{secrets.token_hex(3)}"
    kube.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_until(lambda: kube.api("GET", account)[0] == 200, what="the namespace's account")
    return name


def collection_of(body: dict[str, Any], namespace: str) -> str:
    return {
        "Queue": kai.QUEUES,
        "PriorityClass": kai.PRIORITY_CLASSES,
        "PodGroup": kai.pod_groups_path(namespace),
        "Pod": f"/api/v1/namespaces/{namespace}/pods",
    }[body["kind"]]


def moved(body: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The object in this run's namespace, if it is in one."""
    metadata = {**body["metadata"], "namespace": namespace} if "namespace" in body["metadata"] else None
    return {**body, "metadata": metadata or body["metadata"]}


@pytest.mark.parametrize("name", GOLDENS)
def test_kais_definitions_take_it(kube: KubeCluster, namespace: str, name: str) -> None:
    for made in GOLDENS[name].make(GOLDENS[name].profile):
        body = moved(made, namespace)
        collection = collection_of(body, namespace)
        path = f"{collection}/{body['metadata']['name']}?fieldManager={names.FIELD_MANAGER}&force=true"
        for method, where, kind in (("PATCH", f"{path}&", APPLY), ("POST", f"{collection}?", JSON)):
            status, answer = kube.api(method, f"{where}dryRun=All&fieldValidation=Strict", body, kind=kind)
            assert status in (200, 201), f"{method} {body['kind']}: {answer}"


def test_what_they_would_not_take_is_refused(kube: KubeCluster, namespace: str) -> None:
    """So that the test above says something."""
    queue, *_ = GOLDENS["queues"].make(PROFILE)
    misspelt = {**queue, "spec": {**queue["spec"], "parentqueue": "x"}}
    query = "?dryRun=All&fieldValidation=Strict"
    assert kube.api("POST", f"{kai.QUEUES}{query}", misspelt)[0] == 400
    (group,) = (body for body in GOLDENS["train"].make(PROFILE) if body["kind"] == "PodGroup")
    wrong = moved({**group, "spec": {**group["spec"], "preemptibility": "perhaps"}}, namespace)
    assert kube.api("POST", f"{kai.pod_groups_path(namespace)}{query}", wrong)[0] == 422
