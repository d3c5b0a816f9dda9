"""The engine on a real API server with fake nodes: what is lost, doubled, refused or done behind our back."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import EngineRefused, EngineUnreachable, PodSpec
from controlplane.engines.kubernetes import cluster_cache, manifests, names, tenancy_sync
from controlplane.engines.kubernetes.engine import KubernetesEngine
from controlplane.engines.kubernetes.objects import IN_USE_SECONDS, REMEMBERED_SECONDS
from controlplane.engines.registry import open_engine
from controlplane.kubernetes_api.credentials import access_of_kubeconfig
from controlplane.logstore.writer import LogWriter
from controlplane.loop.runner import TENANTS_EVERY
from tests.contract.harness import PROJECT, EngineCase, kubernetes_settings
from tests.kube import MERGE
from tests.kubernetes.engine_case import REPORT, Case
from tests.kubernetes.proxy import Faults, fault_proxy
from tests.waiting import patience, wait_until

MOST_CALLS = 12  # per job over its life


# Once, whatever is lost


def start_surely(engine: KubernetesEngine, spec: PodSpec) -> int:
    """As the loop does: again until there is an answer. How often."""
    for tries in range(1, 50):
        try:
            engine.start(spec)
        except EngineUnreachable:
            continue
        return tries
    raise AssertionError("never an answer")


def test_pods_whose_start_was_not_answered_are_adopted(case: Case):
    with fault_proxy(case.kube) as proxy:
        engine = case.again(access=proxy.access())
        case.pods_of(engine)
        proxy.faults = Faults(lose_answer=0.4, drop=0.1)
        specs = [case.spec(rank=rank, job_id=f"job-{rank}") for rank in range(8)]
        tries = sum(start_surely(engine, spec) for spec in specs)
        proxy.faults = Faults()
        assert tries > len(specs)
        assert sorted(case.found()) == sorted(spec.name for spec in specs)
        wait_until(lambda: len(engine.pods()) == len(specs), what="all of them to be seen")


def test_late_watch_events_start_nothing_twice(case: Case):
    with fault_proxy(case.kube) as proxy:
        engine = case.again(access=proxy.access())
        case.pods_of(engine)
        proxy.faults = Faults(stall_seconds=3)
        spec = case.spec()
        engine.start(spec)
        assert [report.name for report in engine.pods()] == [spec.name]
        engine.start(spec)
        case.engine.start(replace(spec, command=("false",)))
        proxy.faults = Faults()
        (uid,) = {pod["metadata"]["uid"] for pod in case.kube.must("GET", case.path("pods"))["items"]}
        case.wait_running(spec)
        assert case.kube.must("GET", case.path("pods", spec.name))["metadata"]["uid"] == uid


@pytest.mark.parametrize(("code", "reason"), [(0, base.COMPLETED), (3, base.EXIT_CODE)])
def test_a_stop_that_comes_after_the_end_changes_nothing(case: Case, code: int, reason: str):
    """A kubelet calls a pod ended a moment after its container has: the loop's order falls in between."""
    spec = case.start()
    case.wait_running(spec)
    case.kube.end_pod(case.namespace, spec.name, code, is_noticed=False)
    case.wait_reason(spec, reason)
    kwok = case.kube.part("kwok")  # it would kill a container that has ended
    kwok.suspend()
    try:
        case.engine.stop(spec.name, 1)
        case.kube.end_pod(case.namespace, spec.name, code)
        wait_until(lambda: case.report(spec).is_proven_gone, 30, "its end")
        assert (case.report(spec).reason, case.report(spec).exit_code) == (reason, code)
    finally:
        kwok.resume()


def test_a_pod_is_not_forgotten_before_its_log_is_read_by_whoever_reads_it(case: Case):
    spec = case.start()
    case.wait_running(spec)
    case.kube.end_pod(case.namespace, spec.name)
    case.wait_end(spec)
    case.stop_copying(spec)
    Path(spec.log_path).unlink(missing_ok=True)
    with contextlib.closing(LogWriter(spec.log_path)) as another_process:
        another_process.add([(1, b"o", b"hello")])
        with pytest.raises(EngineRefused, match="still being read") as refusal:
            case.engine.forget(spec.name)
        assert refusal.value.is_passing
        another_process.end("exit 0")
    case.engine.forget(spec.name)
    assert case.report(spec) is None


def test_a_pod_whose_command_has_ended_is_not_deleted_before_its_log_is_read(case: Case):
    """A kubelet removes the containers of a deleted pod, and their logs with them."""
    spec = case.start()
    case.wait_running(spec)
    case.stop_copying(spec)
    Path(spec.log_path).unlink(missing_ok=True)
    case.kube.end_pod(case.namespace, spec.name, is_noticed=False)
    case.wait_reason(spec, base.COMPLETED)
    with contextlib.closing(LogWriter(spec.log_path)) as another_process:
        another_process.add([(1, b"o", b"hello")])
        with pytest.raises(EngineRefused, match="still being read") as refusal:
            case.engine.stop(spec.name, 1)
        assert refusal.value.is_passing
        assert "deletionTimestamp" not in case.kube.must("GET", case.path("pods", spec.name))["metadata"]
        another_process.end("exit 0")
    case.engine.stop(spec.name, 1)
    assert case.kube.must("GET", case.path("pods", spec.name))["metadata"]["deletionTimestamp"]


def test_a_start_that_is_repeated_late_starts_nothing(case: Case):
    spec = case.start()
    case.wait_running(spec)
    case.engine.stop(spec.name, 1)
    case.wait_end(spec)
    case.engine.forget(spec.name)
    assert case.report(spec) is None
    case.engine.start(spec)
    case.again().start(spec)
    assert case.found() == []


def test_a_start_after_a_stop_that_came_before_it_was_forgotten_starts_nothing(case: Case):
    first = case.start(world_size=2)
    case.wait_running(first)
    late = case.spec(job_id=first.job_id, rank=1, world_size=2)
    case.engine.stop(late.name, 1, PROJECT)
    case.engine.forget(late.name)
    case.again().start(late)
    assert case.found() == [first.name]


def test_after_a_restart_everything_is_found_again(case: Case):
    running, ended = case.start(), case.start()
    case.wait_running(running)
    case.wait_running(ended)
    case.engine.close()
    case.kube.end_pod(case.namespace, ended.name, 3)
    case.engine = case.again()
    assert case.wait_end(ended).exit_code == 3
    assert case.wait_running(running).node == case.node
    case.engine.start(running)
    case.engine.stop(running.name, 1)
    assert case.wait_end(running).reason == base.STOPPED


def test_a_name_that_somebody_else_took_is_left_alone(case: Case):
    spec = case.spec()
    pod = {
        "metadata": {"name": spec.name},
        "spec": {
            "containers": [{"name": "theirs", "image": "x", "securityContext": RESTRICTED}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }
    case.kube.must("POST", case.path("pods"), pod)
    for _ in range(2):
        with pytest.raises(EngineRefused) as refusal:
            case.engine.start(spec)
        assert refusal.value.code == base.NAME_TAKEN
    assert case.engine.find(spec.name, PROJECT) is None
    case.engine.stop("other-1-0", 1, PROJECT)
    assert case.kube.must("GET", case.path("pods", spec.name))["spec"]["containers"][0]["name"] == "theirs"


RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


# Behind our back


def test_a_pod_that_somebody_deletes_is_reported_until_we_forget_it(case: Case):
    spec = case.start()
    case.wait_running(spec)
    case.kube.kubectl("-n", case.namespace, "delete", "pod", spec.name, "--wait=false")
    report = case.wait_end(spec)
    assert (report.state, report.reason) == (base.FAILED, base.POD_DELETED)
    assert report.reason in base.DISRUPTIONS
    assert case.found() == [spec.name]
    case.engine.forget(spec.name)
    assert case.report(spec) is None
    wait_until(lambda: case.found() == [], what="the object to go")


def test_a_node_that_is_not_ready_keeps_its_pods_until_it_is_declared_dead(case: Case):
    lost = f"lost-{secrets.token_hex(3)}"
    case.kube.add_node(lost, gpus=2)
    wait_until(
        lambda: lost in {report.name for report in case.engine.nodes()}, what="the engine to see the node"
    )
    spec = case.start(node=lost)
    case.wait_running(spec)
    silent = {"conditions": [{"type": "Ready", "status": "False", "reason": "Test", "message": "no word"}]}

    def is_ready() -> bool:
        return next(report.is_ready for report in case.engine.nodes() if report.name == lost)

    left_alone = {"metadata": {"annotations": {"kwok.x-k8s.io/node": None}}}
    case.kube.must("PATCH", f"/api/v1/nodes/{lost}", left_alone, kind=MERGE)
    case.kube.patch_status(f"/api/v1/nodes/{lost}", silent)
    wait_until(lambda: not is_ready(), what="the node not to be ready")
    report = case.report(spec)
    assert (report.state, report.is_proven_gone) == (base.RUNNING, False)
    case.kube.kubectl("taint", "node", lost, "node.kubernetes.io/out-of-service=yes:NoSchedule")
    report = case.wait_end(spec)
    assert (report.reason, report.exit_code) == (base.NODE_LOST, None)
    case.engine.forget(spec.name)
    assert case.report(spec) is None
    case.kube.must("DELETE", f"/api/v1/nodes/{lost}")


def test_a_pod_of_somebody_else_holds_its_gpus(case: Case):
    name = f"shared-{secrets.token_hex(3)}"
    case.kube.add_node(name, gpus=4)
    theirs = {
        "metadata": {"name": name},
        "spec": {
            "nodeName": name,
            "containers": [
                {
                    "name": "c",
                    "image": "x",
                    "resources": {"limits": {"nvidia.com/gpu": "3"}, "requests": {"cpu": "2"}},
                }
            ],
        },
    }
    wait_until(
        lambda: case.kube.api("POST", "/api/v1/namespaces/default/pods", theirs)[0] == 201, what="their pod"
    )

    def foreign() -> list[int]:
        reports = (report for report in case.engine.nodes() if report.name == name)
        return [device.index for report in reports for device in report.devices if device.is_foreign]

    wait_until(lambda: foreign() == [1, 2, 3], what="three GPUs to be theirs")
    case.kube.must("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")
    case.kube.must("DELETE", f"/api/v1/nodes/{name}")
    wait_until(lambda: name not in [report.name for report in case.engine.nodes()], what="the node to go")


# Refusals


def test_the_clusters_quota_refuses_in_its_own_words(case: Case):
    case.engine.sync_projects((replace(REPORT, quota_milli_gpus=1000, limit_milli_gpus=1000),))

    def is_in_force() -> bool:
        quotas = case.kube.must("GET", case.path("resourcequotas"))["items"]
        return bool(quotas) and all("used" in quota["status"] for quota in quotas)

    wait_until(is_in_force, what="the quota to be in force")
    case.start()
    with pytest.raises(EngineRefused) as refusal:
        case.start()
    assert (refusal.value.code, refusal.value.is_passing) == (base.QUOTA_REFUSED, True)
    assert "nvidia.com/gpu" in refusal.value.message
    assert len(case.engine.pods()) == 1


def test_a_policy_of_the_cluster_refuses_in_its_own_words(case: Case):
    name = f"no-{secrets.token_hex(3)}"
    group = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": case.namespace}}}
    validation = {"expression": "false", "message": "Pods need a cost centre."}
    for kind, spec in (
        (
            "ValidatingAdmissionPolicy",
            {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]},
        ),
        (
            "ValidatingAdmissionPolicyBinding",
            {"policyName": name, "validationActions": ["Deny"], "matchResources": where},
        ),
    ):
        plural = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(kind, f"{kind.lower()}s")
        body = {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}
        case.kube.must("POST", f"/apis/{group}/{plural}", body)

    def refusal() -> EngineRefused | None:
        try:
            case.start()
        except EngineRefused as refused:
            return refused
        return None

    refused = wait_until(refusal, 30, "the policy to count")
    assert refused is not None
    assert refused.code == base.ADMISSION_REFUSED
    assert "cost centre" in refused.message
    case.kube.must("DELETE", f"/apis/{group}/validatingadmissionpolicies/{name}")


def test_a_cluster_that_does_not_answer_is_unreachable_and_not_empty(case: Case):
    text = case.kube.kubeconfig_text.replace(case.kube.url, "https://127.0.0.1:1")
    engine = case.again(access=access_of_kubeconfig(text))
    for call in (engine.nodes, engine.pods, lambda: engine.start(case.spec())):
        with pytest.raises(EngineUnreachable):
            call()


def test_a_cluster_that_has_not_been_heard_of_is_unreachable(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_cache, "STALE_SECONDS", 0.2)
    with fault_proxy(case.kube) as proxy:
        engine = case.again(access=proxy.access())

        def is_unreachable() -> bool:
            try:
                engine.pods()
            except EngineUnreachable:
                return True
            return False

        wait_until(lambda: not is_unreachable(), what="the cluster to be heard of")
        proxy.faults = Faults(drop=1)
        proxy.cut_all()
        wait_until(is_unreachable, what="the engine to know that it knows nothing")
        proxy.faults = Faults()
        wait_until(lambda: not is_unreachable(), 30, "the cluster to be heard of again")


# What is kept and removed


def test_a_job_costs_few_calls(case: Case):
    case.wait_running(case.start())  # the namespace is known from here on
    before = case.engine.client.calls.total()
    spec = case.start()
    case.wait_running(spec)
    case.engine.stop(spec.name, 1, PROJECT)
    case.wait_end(spec)
    case.engine.forget(spec.name)
    case.engine.forget_job(spec.job_id)
    log_calls = 2  # one stream that follows, one that drains
    assert case.engine.client.calls.total() - before + log_calls <= MOST_CALLS


def test_anchors_go_when_their_attempt_has_and_nothing_else_does(case: Case, monkeypatch: pytest.MonkeyPatch):
    theirs = {"metadata": {"name": "theirs", "labels": {names.JOB_ID: "x"}}}
    case.kube.must("POST", case.path("configmaps"), theirs)
    running, gone = case.start(), case.start(world_size=2)
    for spec in (running, gone):
        case.wait_running(spec)
    case.engine.stop(gone.name, 1)
    case.wait_end(gone)
    case.engine.forget(gone.name)
    assert len(case.found("configmaps")) == 2
    assert len(case.found("services")) == 1
    case.again().sync_projects((REPORT,))
    assert len(case.found("configmaps")) == 2  # young ones may be about to be used
    monkeypatch.setattr(tenancy_sync, "GRACE_SECONDS", -5)
    case.engine.sync_projects((REPORT,))
    assert len(case.found("configmaps")) == 2  # and so may those that this process has just used
    case.again().sync_projects((REPORT,))
    assert case.found("configmaps") == [f"{running.job_id}-1"]
    assert case.kube.api("GET", case.path("configmaps", "theirs"))[0] == 200
    wait_until(lambda: case.found("services") == [], 30, "what the anchor owned to go")


def test_an_anchor_stays_for_as_long_as_a_slow_start_is_at_work_with_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    engine, passed = case.engine, 0.0
    monkeypatch.setattr(engine._objects, "_clock", lambda: time.monotonic() + passed)
    monkeypatch.setattr(engine._syncer, "_clock", lambda: time.monotonic() + passed)
    monkeypatch.setattr(tenancy_sync, "GRACE_SECONDS", -5)
    hangs, goes_on, make = threading.Event(), threading.Event(), engine._objects.make

    def make_slowly(body: dict) -> dict:
        if body["kind"] == "Pod":
            hangs.set()
            goes_on.wait(patience(30))
        return make(body)

    monkeypatch.setattr(engine._objects, "make", make_slowly)
    spec = case.spec()
    start = threading.Thread(target=engine.start, args=(spec,))
    start.start()
    try:
        assert hangs.wait(patience(10))
        passed = IN_USE_SECONDS + 1
        engine.sync_projects((REPORT,))
        assert case.found("configmaps") == [f"{spec.job_id}-1"]
    finally:
        goes_on.set()
        start.join()
    assert case.found() == [spec.name]


def test_objects_of_attempts_that_are_over_are_not_remembered_for_ever(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    passed, objects = 0.0, case.engine._objects
    monkeypatch.setattr(objects, "_clock", lambda: time.monotonic() + passed)
    for _ in range(3):
        case.start(devices=())
        passed += 2 * REMEMBERED_SECONDS
    last = case.start(devices=())
    assert set(objects._seen) == {
        f"/api/v1/namespaces/{case.namespace}",
        case.path("configmaps", f"{last.job_id}-1"),
    }


@pytest.mark.parametrize("tries", [1, 3])
def test_what_a_start_left_that_made_no_pod_is_gone_in_a_minute(
    case: Case, monkeypatch: pytest.MonkeyPatch, tries: int
):
    """Also when it was tried again and again, and nobody starts anew in between. Time is played, its bounds are not."""
    engine, passed = case.engine, 0.0
    monkeypatch.setattr(engine._objects, "_clock", lambda: time.monotonic() + passed)
    monkeypatch.setattr(engine._syncer, "_clock", lambda: time.monotonic() + passed)
    now = engine.client.server_time
    monkeypatch.setattr(engine.client, "server_time", lambda: now() + timedelta(seconds=passed))
    refused = case.spec(world_size=2)
    monkeypatch.setattr(manifests, "pod", lambda *_: {"kind": "Pod", "metadata": {"name": "not a name"}})
    for _ in range(tries):
        with pytest.raises(EngineRefused):
            engine.start(refused)
        passed += REMEMBERED_SECONDS - 1
    made = ("configmaps", "services", "persistentvolumeclaims")
    assert case.found("configmaps") == [f"{refused.job_id}-1"]
    passed -= REMEMBERED_SECONDS - 1  # the last try was now
    for _ in range(0, 54, TENANTS_EVERY):
        engine.sync_projects((REPORT,))
        passed += TENANTS_EVERY
    engine.sync_projects((REPORT,))
    wait_until(lambda: not any(case.found(kind) for kind in made), 20, "the end of what it made")


def test_a_way_into_one_pod_does_not_watch_the_cluster(case: Case):
    spec = case.start()
    case.wait_running(spec)
    elsewhere = case.again()
    with pytest.raises((EngineRefused, EngineUnreachable)):  # nothing listens in a fake pod
        elsewhere.open_port(spec.name, 8080)
    with pytest.raises(EngineRefused) as refused:
        elsewhere.open_shell(f"{spec.job_id}-1-9", 80, 24)
    assert refused.value.code == base.NO_SUCH_POD
    assert dict(elsewhere.client.calls) == {("list", "pods"): 2}


def test_many_starts_at_once(case: Case):
    specs = [case.spec(devices=(), job_id=f"many-{n}") for n in range(40)]
    threads = [threading.Thread(target=case.engine.start, args=(spec,)) for spec in specs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(case.found()) == sorted(spec.name for spec in specs)
    assert len(case.engine.pods()) == len(specs)


# Beside another cluster


def test_two_clusters_whose_nodes_are_called_the_same_run_side_by_side(case: Case, tmp_path: Path):
    settings = {**kubernetes_settings(case.kube), "image_pull_policy": "", "node_suffix": "prod2"}
    second = EngineCase(open_engine("kubernetes", settings, tmp_path), tmp_path, lambda seconds: None)
    second.engine.sync_projects((REPORT,))
    try:
        here, there = case.start(), second.start(node=f"{case.node}.prod2")
        assert case.wait_running(here).node == case.node
        assert second.wait_running(there).node == f"{case.node}.prod2"
        known = {case.node, f"{case.node}.prod2"}
        told = {node.name for engine in (case.engine, second.engine) for node in engine.nodes()}
        assert told >= known
        assert f"{case.node}.prod2.prod2" not in told
        namespace = f"{settings['namespace_prefix']}{PROJECT}"
        pod = case.kube.must("GET", f"/api/v1/namespaces/{namespace}/pods/{there.name}")
        assert pod["spec"]["nodeName"] == case.node
    finally:
        second.close()
