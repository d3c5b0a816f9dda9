"""Projects in a cluster that others use too: what is whose, what is kept right and what is removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import EngineRefused
from controlplane.engines.kubernetes import names, tenancy_sync
from controlplane.engines.kubernetes.engine import KubernetesEngine
from datasets.storage.claims import CLAIM_DELETED, NAMESPACE_DELETED, CacheClaim
from tests.contract.harness import PROJECT, EngineCase, kubernetes_settings
from tests.kube import MERGE, KubeCluster
from tests.kubernetes.engine_case import REPORT, Case
from tests.waiting import wait_until


def test_a_namespace_that_is_not_ours_is_left_alone(kube: KubeCluster, node: str, tmp_path: Path):
    settings = kubernetes_settings(kube)
    namespace = f"{settings['namespace_prefix']}{PROJECT}"
    kube.must("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    engine = KubernetesEngine(settings, tmp_path)
    spec = EngineCase(engine, tmp_path, lambda seconds: None).spec(node=node)
    for call in (lambda: engine.start(spec), lambda: engine.sync_projects((REPORT,))):
        with pytest.raises(EngineRefused) as refusal:
            call()
        assert refusal.value.code == base.NAMESPACE_NOT_OURS
        assert namespace in refusal.value.message
    labels = {names.INSTALLATION: settings["installation"], names.PROJECT: PROJECT}
    posing = {"metadata": {"name": "posing", "labels": labels}, "spec": {"hard": {"pods": "9"}}}
    kube.must("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", posing)
    later = KubernetesEngine(settings, tmp_path)
    with pytest.raises(EngineRefused):
        later.sync_projects((REPORT,))
    later.close()
    kube.must("DELETE", f"/api/v1/namespaces/{namespace}/resourcequotas/posing")
    engine.forget_project(PROJECT)
    engine.close()
    found = kube.must("GET", f"/api/v1/namespaces/{namespace}")
    assert "deletionTimestamp" not in found["metadata"]
    assert kube.must("GET", f"/api/v1/namespaces/{namespace}/resourcequotas")["items"] == []
    kube.must("DELETE", f"/api/v1/namespaces/{namespace}")


def test_two_installations_on_one_cluster_leave_each_other_alone(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tenancy_sync, "GRACE_SECONDS", -5)
    other = Case(case.kube, case.node, tmp_path / "other")
    try:
        ours, theirs = case.start(), other.start()
        for one, spec in ((case, ours), (other, theirs)):
            one.wait_running(spec)
            assert [report.name for report in one.engine.pods()] == [spec.name]
            for engine in (one.again(), one.engine):
                engine.sync_projects((REPORT,))
        assert case.found("configmaps") == [f"{ours.job_id}-1"]
        assert other.found("configmaps") == [f"{theirs.job_id}-1"]
        (device,) = [
            device for report in case.engine.nodes() for device in report.devices if device.is_foreign
        ]
        assert device.index == 7  # theirs
    finally:
        other.close()


def test_a_namespace_of_another_installation_is_said_to_be_theirs(case: Case, tmp_path: Path):
    settings = {**case.settings, "installation": "another"}
    engine = KubernetesEngine(settings, tmp_path / "other")
    spec = case.start()
    for call in (lambda: engine.start(case.spec()), lambda: engine.sync_projects((REPORT,))):
        with pytest.raises(EngineRefused, match="another Trainyard") as refusal:
            call()
        assert refusal.value.code == base.NAMESPACE_NOT_OURS
        assert "remove it" not in refusal.value.message
    assert engine.pods() == ()
    engine.forget_project(PROJECT)
    engine.close()
    case.wait_running(spec)


def test_a_pod_that_poses_as_ours_elsewhere_is_not_ours(case: Case):
    spec = case.start()
    report = case.wait_running(spec)
    labels = case.kube.must("GET", case.path("pods", spec.name))["metadata"]["labels"]
    posing = {
        "metadata": {"name": f"{spec.job_id}-2-0", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    path = "/api/v1/namespaces/default/pods"
    wait_until(lambda: case.kube.api("POST", path, posing)[0] == 201, what="the pod that poses")
    for engine in (case.again(), case.engine):
        (found,) = case.pods_of(engine)
        assert (found.name, found.node) == (spec.name, report.node)
    case.kube.must("DELETE", f"{path}/{spec.job_id}-2-0?gracePeriodSeconds=0")


def test_what_was_edited_by_hand_is_put_right_and_what_is_right_costs_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    quota = case.path("resourcequotas", "trainyard-guaranteed")
    as_it_was = case.kube.must("GET", quota)["spec"]
    case.kube.must("PATCH", quota, {"spec": {"hard": {"requests.nvidia.com/gpu": "800"}}}, kind=MERGE)
    case.kube.must(
        "DELETE",
        "/apis/networking.k8s.io/v1" + case.path("networkpolicies", "trainyard").removeprefix("/api/v1"),
    )
    calls = case.engine.client.calls.total()
    case.engine.sync_projects((REPORT,))
    assert case.engine.client.calls.total() == calls  # it was looked at a moment ago
    monkeypatch.setattr(tenancy_sync, "CHECK_SECONDS", 0)
    case.engine.sync_projects((REPORT,))
    assert case.kube.must("GET", quota)["spec"] == as_it_was
    patched = sum(n for (verb, _), n in case.engine.client.calls.items() if verb == "patch")
    case.engine.sync_projects((REPORT,))
    other = case.again()
    other.sync_projects((REPORT,))
    assert sum(n for (verb, _), n in case.engine.client.calls.items() if verb == "patch") == patched
    assert not [key for key in other.client.calls if key[0] == "patch"]  # nor after a restart


WIDER = [{"from": [{"podSelector": {}, "namespaceSelector": {}}, {"podSelector": {}}]}]  # all namespaces
SELECTS = {"podSelector": {"matchLabels": {"a": "b"}}}  # in place of every pod


@pytest.mark.parametrize(
    ("group", "name", "spec"),
    [
        ("", "resourcequotas/trainyard-guaranteed", {"hard": {"pods": "0"}}),
        ("networking.k8s.io", "networkpolicies/trainyard", SELECTS),
        ("networking.k8s.io", "networkpolicies/trainyard", {"ingress": [{}]}),
        ("networking.k8s.io", "networkpolicies/trainyard", {"ingress": [{"from": [SELECTS, SELECTS]}]}),
        ("networking.k8s.io", "networkpolicies/trainyard", {"ingress": WIDER}),
    ],
)
def test_what_was_added_by_hand_is_taken_out(
    case: Case, monkeypatch: pytest.MonkeyPatch, group: str, name: str, spec: dict
):
    path = _elsewhere(case, group, name) if group else case.path(*name.split("/"))
    as_it_was = case.kube.must("GET", path)["spec"]
    monkeypatch.setattr(tenancy_sync, "CHECK_SECONDS", 0)
    for engine in (case.engine, case.again()):
        case.kube.must("PATCH", path, {"spec": spec}, kind=MERGE)
        assert case.kube.must("GET", path)["spec"] != as_it_was
        engine.sync_projects((REPORT,))
        assert case.kube.must("GET", path)["spec"] == as_it_was


def test_what_is_not_wanted_any_more_is_removed_and_nothing_else(case: Case):
    limited = replace(REPORT, limit_milli_gpus=1000, members=(("ana", "owner"), ("ben", "owner")))
    case.engine.sync_projects((limited, replace(limited, name="other")))
    theirs = {
        "spec": {"hard": {"pods": "1000"}},
        "metadata": {"name": "theirs", "labels": {names.PROJECT: PROJECT}},
    }
    case.kube.must("POST", case.path("resourcequotas"), theirs)
    case.engine.sync_projects((replace(REPORT, members=(("ana", "owner"),)),))
    assert case.found("resourcequotas") == ["trainyard-guaranteed"]
    assert case.kube.api("GET", case.path("resourcequotas", "theirs"))[0] == 200
    owners = case.kube.must(
        "GET", _elsewhere(case, "rbac.authorization.k8s.io", "rolebindings/trainyard-owner")
    )
    assert "ben" not in [subject["name"] for subject in owners["subjects"]]
    # what is in a namespace of no project goes with that namespace
    prefix = case.settings["namespace_prefix"]
    assert case.kube.api("GET", f"/api/v1/namespaces/{prefix}other/resourcequotas/trainyard-limit")[0] == 200
    calls = case.engine.client.calls.total()
    case.engine.sync_projects((replace(REPORT, members=(("ana", "owner"),)),))
    assert case.engine.client.calls.total() == calls
    case.engine.forget_project("other")


def test_a_network_policy_that_is_switched_off_is_removed(case: Case):
    path = _elsewhere(case, "networking.k8s.io", "networkpolicies/trainyard")
    assert case.kube.api("GET", path)[0] == 200
    case.settings = {**case.settings, "network_policy": False}
    case.again().sync_projects((REPORT,))
    assert case.kube.api("GET", path)[0] == 404


def _elsewhere(case: Case, group: str, name: str) -> str:
    return f"/apis/{group}/v1/namespaces/{case.namespace}/{name}"


def test_a_project_that_is_deleted_takes_its_namespace_along(case: Case):
    case.engine.forget_project(PROJECT)
    wait_until(lambda: case.kube.api("GET", f"/api/v1/namespaces/{case.namespace}")[0] == 404, 30, "it to go")
    case.engine.forget_project(PROJECT)
    spec = case.start()
    case.wait_running(spec)


def test_questions_about_volumes_and_caches_make_no_namespace(kube: KubeCluster, tmp_path: Path):
    settings = kubernetes_settings(kube)
    namespace = f"/api/v1/namespaces/{settings['namespace_prefix']}{PROJECT}"
    engine = KubernetesEngine(settings, tmp_path)
    volumes = engine.volumes(PROJECT, "standard", 1 << 20, "ReadWriteOnce")
    assert volumes.trouble("one") == NAMESPACE_DELETED
    assert engine.caches(PROJECT, CacheClaim()).trouble() == CLAIM_DELETED
    volumes.remove("one")
    assert kube.api("GET", namespace)[0] == 404
    engine.sync_projects((REPORT,))
    assert volumes.trouble("one") == CLAIM_DELETED
    engine.close()
    kube.must("DELETE", namespace)
    assert volumes.trouble("one") == NAMESPACE_DELETED
