"""Projects on a real API server: who may do what with kubectl, and what a namespace's quotas refuse."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, ProjectReport
from controlplane.engines.kubernetes import manifests, names, tenancy
from controlplane.engines.kubernetes.api_errors import refusal_of
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.kubernetes_api.errors import ApiError
from tests.kube import APPLY, KubeCluster
from tests.pure.kubernetes.goldens import anchor, node, spec
from tests.waiting import wait_until

MINE = ProjectReport(
    "mine", 1000, 2000, 1000, members=(("ana", "owner"), ("ben", "member"), ("vic", "viewer"))
)
OTHER = ProjectReport("other", 1000, None, 1000, members=(("chi", "owner"),))


@pytest.fixture(scope="module")
def profile(kube: KubeCluster) -> Iterator[ClusterProfile]:
    """An installation of this module's own, with two projects."""
    unique = secrets.token_hex(3)
    profile = ClusterProfile(installation=f"test-{unique}", namespace_prefix=f"t{unique}-")
    wanted = (*tenancy.cluster_roles(), *tenancy.objects([MINE, OTHER], profile))
    for body in wanted:
        kube.must("PATCH", f"{names.path_of(body)}?fieldManager=test&force=true", body, kind=APPLY)
    account = f"/api/v1/namespaces/{profile.namespace_of('mine')}/serviceaccounts/default"
    wait_until(lambda: kube.api("GET", account)[0] == 200, what="the namespace's account")
    yield profile
    for body in wanted:
        if body["kind"] in ("Namespace", "PriorityClass"):
            kube.api("DELETE", names.path_of(body))


def may(kube: KubeCluster, who: dict[str, object], namespace: str, verb: str, resource: str) -> bool:
    """Whether the API server's authorizer says yes. `resource`: "pods", "pods/log", "rolebindings"."""
    name, _, subresource = resource.partition("/")
    group = tenancy.RBAC if name == "rolebindings" else ""
    about = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": name,
        "subresource": subresource,
    }
    review = {"spec": {**who, "resourceAttributes": about}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(kube.must("POST", path, review)["status"]["allowed"])


@pytest.mark.parametrize(
    ("user", "verb", "resource", "in_mine", "in_other"),
    [
        ("ana", "list", "pods", True, False),
        ("ana", "list", "rolebindings", True, False),
        ("ana", "create", "pods", False, False),
        ("ana", "create", "rolebindings", False, False),
        ("ben", "create", "pods/exec", True, False),
        ("ben", "create", "secrets", True, False),
        ("ben", "list", "rolebindings", False, False),
        ("vic", "get", "pods/log", True, False),
        ("vic", "create", "pods/exec", False, False),
        ("vic", "get", "secrets", False, False),
        ("chi", "list", "pods", False, True),
        ("somebody", "list", "pods", False, False),
    ],
)
def test_kubectl_users_see_their_own_project(kube, profile, user, verb, resource, in_mine, in_other):
    found = [
        may(kube, {"user": user}, profile.namespace_of(name), verb, resource) for name in ("mine", "other")
    ]
    assert found == [in_mine, in_other]


def test_a_site_gives_roles_by_group(kube: KubeCluster, profile: ClusterProfile):
    who = {"user": "someone", "groups": ["trainyard:mine:viewer"]}
    assert may(kube, who, profile.namespace_of("mine"), "list", "pods")
    assert not may(kube, who, profile.namespace_of("other"), "list", "pods")


@pytest.mark.parametrize(
    ("gpus", "is_preemptible", "quota"), [(3, True, "trainyard-limit"), (2, False, "trainyard-guaranteed")]
)
def test_the_quotas_refuse_in_words(kube, profile, gpus: int, is_preemptible: bool, quota: str):
    path = f"/api/v1/namespaces/{profile.namespace_of('mine')}/resourcequotas/{quota}"
    wait_until(lambda: kube.must("GET", path)["status"].get("hard"), what="the quota to be counted")
    devices = tuple(DeviceShare(index, 1000, 1) for index in range(gpus))
    wanted = replace(spec(devices=devices, is_preemptible=is_preemptible), project="mine")
    pod = manifests.pod(wanted, profile, node(), anchor(wanted, profile))
    status, answer = kube.api(
        "POST", f"/api/v1/namespaces/{profile.namespace_of('mine')}/pods?dryRun=All", pod
    )
    refusal = refusal_of(ApiError(status, json.dumps(answer).encode()))
    assert (refusal.code, refusal.is_passing) == (base.QUOTA_REFUSED, True)
    assert quota in refusal.message
