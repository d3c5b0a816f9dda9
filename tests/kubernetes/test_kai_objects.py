"""What we make for KAI is taken by its own definitions, on a real API server. KAI itself is not needed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controlplane.engines import base
from controlplane.engines.base import (
    DepartmentReport,
    EngineRefused,
    PodReport,
    PodSpec,
    ProjectReport,
    Verdict,
)
from controlplane.engines.kubernetes import kai, names, tenancy, tenancy_sync
from controlplane.engines.kubernetes.config import KAI
from controlplane.engines.kubernetes.engine import KubernetesEngine
from controlplane.engines.kubernetes.objects import Objects
from controlplane.engines.kubernetes.scheduler import KaiScheduler
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import access_of_kubeconfig
from controlplane.kubernetes_api.names import FIELD_MANAGER
from controlplane.scheduling import reasons
from tests.contract.harness import kubernetes_settings
from tests.kube import APPLY, KubeCluster
from tests.kubernetes import kai_rig
from tests.kubernetes.chart import engine_kubeconfig
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
        kube.must("PATCH", f"{names.path_of(body)}?fieldManager=test&force=true", body, kind=APPLY)
    name = f"dry-{secrets.token_hex(3)}"
    kube.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_until(lambda: kube.api("GET", account)[0] == 200, what="the namespace's account")
    return name


def moved(body: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The object in this run's namespace, if it is in one."""
    metadata = {**body["metadata"], "namespace": namespace} if "namespace" in body["metadata"] else None
    return {**body, "metadata": metadata or body["metadata"]}


@pytest.mark.parametrize("name", GOLDENS)
def test_kais_definitions_take_it(kube: KubeCluster, namespace: str, name: str) -> None:
    for made in GOLDENS[name].make(GOLDENS[name].profile):
        body = moved(made, namespace)
        collection = names.list_path(body["kind"], body["metadata"].get("namespace", ""))
        path = f"{collection}/{body['metadata']['name']}?fieldManager={FIELD_MANAGER}&force=true"
        for method, where, kind in (("PATCH", f"{path}&", APPLY), ("POST", f"{collection}?", JSON)):
            status, answer = kube.api(method, f"{where}dryRun=All&fieldValidation=Strict", body, kind=kind)
            assert status in (200, 201), f"{method} {body['kind']}: {answer}"


def test_what_they_would_not_take_is_refused(kube: KubeCluster, namespace: str) -> None:
    """So that the test above says something."""
    queue, *_ = GOLDENS["queues"].make(PROFILE)
    misspelt = {**queue, "spec": {**queue["spec"], "parentqueue": "x"}}
    query = "?dryRun=All&fieldValidation=Strict"
    assert kube.api("POST", f"{names.list_path('Queue')}{query}", misspelt)[0] == 400
    (group,) = (body for body in GOLDENS["train"].make(PROFILE) if body["kind"] == "PodGroup")
    wrong = moved({**group, "spec": {**group["spec"], "preemptibility": "perhaps"}}, namespace)
    assert kube.api("POST", f"{names.list_path('PodGroup', namespace)}{query}", wrong)[0] == 422


@pytest.fixture
def engine(kube: KubeCluster, namespace: str, tmp_path: Path) -> Iterator[KubernetesEngine]:
    """For a cluster that is in KAI's hands."""
    credentials = {"kubeconfig": engine_kubeconfig(kube, scheduler=KAI)}
    settings = {**kubernetes_settings(kube), "scheduler": KAI, "credentials": credentials}
    engine = KubernetesEngine(settings, tmp_path)
    yield engine
    engine.forget_project("a")
    engine.close()


@contextmanager
def kai_answers(kubeconfig: str) -> Iterator[KaiScheduler]:
    """Those that this account is given; the first question is asked."""
    client = Client(access_of_kubeconfig(kubeconfig))
    answers = KaiScheduler(client, Objects(client, PROFILE.installation), PROFILE)
    try:
        answers.with_status((), {}, datetime.now(UTC))
        yield answers
    finally:
        answers.close()
        client.close()


def test_with_the_charts_rights_all_that_kai_says_is_read(kube: KubeCluster, namespace: str) -> None:
    with kai_answers(engine_kubeconfig(kube, scheduler=KAI)) as answers:
        for told in (answers._groups, answers._evictions):
            assert told.wait_synced(20), told.trouble


def test_that_evictions_cannot_be_read_is_said_of_what_waits(kube: KubeCluster, namespace: str) -> None:
    with kai_answers(engine_kubeconfig(kube, ("list", "events"), scheduler=KAI)) as answers:
        assert answers._groups.wait_synced(20), answers._groups.trouble
        wait_until(lambda: answers._evictions.trouble, 20, "the trouble")
        verdict = waiting(answers)
    assert verdict is not None
    assert verdict.reason == reasons.ENGINE_UNREACHABLE
    assert "KAI's evictions cannot be read" in verdict.message
    assert 'cannot list resource "events"' in verdict.message


def waiting(answers: KaiScheduler) -> Verdict | None:
    """What is said of a pod that waits, of which KAI has said nothing."""
    now = datetime.now(UTC)
    metadata = {"name": "x-1-0", "namespace": "y", "creationTimestamp": now.isoformat()}
    (report,) = answers.with_status(
        (PodReport("x-1-0", base.STARTING),), {"x-1-0": {"metadata": metadata}}, now
    )
    return report.verdict


def queues(kube: KubeCluster, engine: KubernetesEngine) -> set[str]:
    """The last parts of our queues' names."""
    root = kai.root_queue(engine._profile)
    items = kube.must(
        "GET", f"{names.list_path('Queue')}?labelSelector={names.ours(engine._profile.installation)}"
    )["items"]
    return {item["metadata"]["name"].removeprefix(root) for item in items}


def test_queues_of_departments_and_projects_that_are_gone_are_removed(
    kube: KubeCluster, engine: KubernetesEngine
) -> None:
    there, gone = (DepartmentReport(name, 1000, None, 1000, 0) for name in ("there", "gone"))
    project = ProjectReport("a", 1000, None, 1000, department="gone")
    engine.sync_projects((project,), (there, gone))
    assert queues(kube, engine) == {"", ".there", ".gone", "-a"}
    engine.sync_projects((ProjectReport("a", 1000, None, 1000, department="there"),), (there,))
    assert queues(kube, engine) == {"", ".there", "-a"}


def test_the_queue_of_a_project_whose_namespace_is_gone_already_goes_too(
    kube: KubeCluster, engine: KubernetesEngine
) -> None:
    engine.sync_projects((ProjectReport("a", 1000, None, 1000),))
    assert queues(kube, engine) == {"", "-a"}
    namespace = names.namespace_path(engine._profile.namespace_of("a"))
    kube.must("DELETE", namespace)
    wait_until(lambda: kube.api("GET", namespace)[0] == 404, what="the end of the namespace")
    engine.forget_project("a")
    assert queues(kube, engine) == {""}


@pytest.mark.parametrize("taken", ["", ".there"])
def test_a_queue_of_somebody_else_is_left_as_it_is(
    kube: KubeCluster, engine: KubernetesEngine, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{kai.root_queue(engine._profile)}{taken}"
    body = {
        "apiVersion": names.KINDS["Queue"][0],
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"priority": 7},
    }
    theirs = kube.must("POST", names.list_path("Queue"), body)
    there = DepartmentReport("there", 1000, None, 1000, 0)
    project = ProjectReport("a", 1000, None, 1000, department="there")
    for _ in range(2):
        monkeypatch.setattr(tenancy_sync, "CHECK_SECONDS", 0)
        with pytest.raises(EngineRefused, match=f"The Queue {name} exists and is not Trainyard's") as refusal:
            engine.sync_projects((project,), (there,))
        assert refusal.value.code == base.NAME_TAKEN
        assert queues(kube, engine) == (set() if taken == "" else {""})  # nothing below it either
    assert kube.must("GET", f"{names.list_path('Queue')}/{name}")["spec"] == theirs["spec"]
    kube.must("DELETE", f"{names.list_path('Queue')}/{name}")
    engine.sync_projects((project,), (there,))
    assert queues(kube, engine) == {"", ".there", "-a"}


def test_a_job_never_enters_a_queue_of_somebody_else(kube: KubeCluster, engine: KubernetesEngine) -> None:
    engine.sync_projects(())
    name = engine._profile.namespace_of("a")
    body = {"apiVersion": names.KINDS["Queue"][0], "kind": "Queue", "metadata": {"name": name}, "spec": {}}
    kube.must("POST", names.list_path("Queue"), body)
    job = f"taken-{secrets.token_hex(3)}"
    spec = PodSpec(f"{job}-1-0", job, "taken", "a", 1, 0, "", command=("true",))
    with pytest.raises(EngineRefused, match=f"The Queue {name} exists and is not Trainyard's") as refusal:
        engine.start(spec)
    assert refusal.value.code == base.NAME_TAKEN
    assert engine.find(spec.name, "a") is None
    kube.must("DELETE", f"{names.list_path('Queue')}/{name}")
