"""Reports of pods. pods.json holds pods as a real API server, kubelet and scheduler of 1.34 showed them, without the
fields that nobody here reads; what a kubelet cannot be brought to do in a test is written by hand below."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.engines import base
from controlplane.engines.base import DeviceShare
from controlplane.engines.kubernetes import mpi, names, reports

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("pods.json").read_text())
NOW = datetime(2026, 11, 21, 3, 0, 20, tzinfo=UTC)
NODES = {"node-a": {"metadata": {"name": "node-a"}, "spec": {}}}
LATER = NOW + timedelta(hours=1)


def recorded(name: str, **status: Any) -> Any:
    raw = copy.deepcopy(RECORDED[name])
    raw["status"] |= status
    return raw


def node_of(raw: Any, nodes: Any = NODES) -> Any:
    return nodes.get(raw["spec"].get("nodeName"))


def report(raw: Any, now: datetime = NOW, nodes: Any = NODES) -> base.PodReport:
    return reports.pod_report(raw, node_of(raw, nodes), now)


def tainted(*keys: str) -> Any:
    return {"node-a": {"metadata": {"name": "node-a"}, "spec": {"taints": [{"key": key} for key in keys]}}}


@pytest.mark.parametrize(
    ("name", "state", "reason", "code", "is_gone", "words"),
    [
        ("completed", base.SUCCEEDED, base.COMPLETED, 0, True, ""),
        ("exit-3", base.FAILED, base.EXIT_CODE, 3, True, "exit code 3"),
        ("killed", base.FAILED, base.KILLED, 137, True, "SIGKILL"),
        ("sigterm-exit", base.FAILED, base.KILLED, 143, True, "SIGTERM"),
        ("oom", base.FAILED, base.OUT_OF_MEMORY, 137, True, "64Mi"),
        ("no-program", base.FAILED, base.COMMAND_NOT_FOUND, 127, True, "nosuchprogram"),
        ("no-program-path", base.FAILED, base.COMMAND_NOT_FOUND, 127, True, "/no/such/program"),
        ("not-executable", base.FAILED, base.COMMAND_NOT_EXECUTABLE, 126, True, "permission denied"),
        ("no-dir", base.FAILED, base.WORKING_DIR_MISSING, 126, True, "not a directory"),
        ("stopped", base.FAILED, base.STOPPED, 143, True, ""),
        ("deleted", base.FAILED, base.POD_DELETED, 9, True, "The pod was deleted"),
        ("deleted-done", base.SUCCEEDED, base.COMPLETED, 0, True, ""),
        ("unschedulable", base.FAILED, base.POD_DELETED, None, True, "before it had a node"),
        ("evicted", base.FAILED, base.EVICTED, 143, True, "EvictionByEvictionAPI: Eviction API: evicting"),
        ("running-tainted", base.FAILED, base.EVICTED, 143, True, "DeletionByTaintManager"),
        ("tombstone", base.FAILED, base.STOPPED, None, True, "before it was started"),
        ("running", base.RUNNING, "", None, False, ""),
        ("never-pull", base.STARTING, base.IMAGE_PULL_FAILED, None, False, "ErrImageNeverPull"),
        ("pull", base.STARTING, base.IMAGE_PULL_FAILED, None, False, "registry.invalid"),
        ("bad-image", base.STARTING, base.IMAGE_PULL_FAILED, None, False, "InvalidImageName"),
        ("secret", base.STARTING, base.CONTAINER_NOT_CREATED, None, False, 'secret "nosecret" not found'),
        ("root", base.STARTING, base.CONTAINER_NOT_CREATED, None, False, "image will run as root"),
        ("vanished-node", base.STARTING, base.WAITING_FOR_NODE, None, False, "0/2 nodes are available"),
        ("volume", base.STARTING, base.WAITING_FOR_NODE, None, False, 'persistentvolumeclaim "noclaim"'),
    ],
)
def test_a_recorded_pod_is_reported(name, state, reason, code, is_gone, words):
    found = report(recorded(name))
    assert (found.state, found.reason, found.exit_code, found.is_proven_gone) == (
        state,
        reason,
        code,
        is_gone,
    )
    assert words in found.message
    assert len(found.message) <= 500
    assert found == report(recorded(name)), "equal input gives an equal report"


@pytest.mark.parametrize("name", [name for name in RECORDED if report(RECORDED[name]).is_proven_gone])
def test_an_end_stays_as_it_is(name: str):
    """Also when its node is gone or silent, and however late one looks."""
    first = report(recorded(name))
    assert first.finished_at is not None
    for nodes in (NODES, {}, tainted(reports.OUT_OF_SERVICE), tainted(*reports.SILENT_NODE_TAINTS)):
        assert report(recorded(name), LATER, nodes) == first
        assert reports.has_ended(recorded(name))


def test_a_pod_that_was_just_made_is_not_told_to_wait_for_its_node():
    raw = recorded("vanished-node", conditions=[])
    made_at = datetime.fromisoformat(raw["metadata"]["creationTimestamp"])
    told = {
        seconds: report(raw, made_at + timedelta(seconds=seconds)).reason
        for seconds in (0, reports.SILENT_SECONDS, reports.SILENT_SECONDS + 1)
    }
    assert list(told.values()) == ["", "", base.WAITING_FOR_NODE]


def test_what_never_began_has_no_start():
    for name in ("no-program", "not-executable", "no-dir", "tombstone", "unschedulable"):
        assert report(recorded(name)).started_at is None
    assert report(recorded("completed")).started_at == datetime(2026, 11, 21, 3, 0, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "seconds", "reason"),
    [
        ("never-pull", reports.REFUSED_PULL_SECONDS, base.IMAGE_PULL_FAILED),
        ("bad-image", reports.REFUSED_PULL_SECONDS, base.IMAGE_PULL_FAILED),
        ("pull", reports.PULL_SECONDS, base.IMAGE_PULL_FAILED),
        ("secret", reports.CREATE_SECONDS, base.CONTAINER_NOT_CREATED),
        ("vanished-node", reports.BIND_SECONDS, base.UNSCHEDULABLE),
        ("volume", reports.VOLUME_SECONDS, base.UNSCHEDULABLE),
    ],
)
def test_what_cannot_start_fails_after_its_time_and_frees_nothing(name: str, seconds: int, reason: str):
    began = datetime.fromisoformat(RECORDED[name]["metadata"]["creationTimestamp"])
    assert report(recorded(name), began + timedelta(seconds=seconds - 2)).state == base.STARTING
    late = report(recorded(name), began + timedelta(seconds=seconds + 2))
    assert (late.state, late.reason, late.is_proven_gone) == (base.FAILED, reason, False)
    assert late.finished_at is None


def test_where_the_cluster_chooses_the_node_waiting_has_no_end():
    raw = recorded("vanished-node")
    del raw["spec"]["affinity"]
    assert report(raw, LATER).state == base.STARTING


def test_a_clock_that_is_behind_fails_nothing():
    for name in ("never-pull", "secret", "vanished-node", "running"):
        assert report(recorded(name), NOW - timedelta(hours=1)).state in (base.STARTING, base.RUNNING)


# Nodes


def test_a_silent_node_frees_nothing_and_is_named():
    found = report(recorded("running"), LATER, tainted("node.kubernetes.io/unreachable"))
    assert (found.state, found.reason, found.is_proven_gone) == (base.RUNNING, base.NODE_LOST, False)
    assert "node-a does not answer" in found.message


@pytest.mark.parametrize("nodes", [{}, tainted(reports.OUT_OF_SERVICE)])
@pytest.mark.parametrize("name", ["running", "secret"])
def test_a_node_that_is_gone_or_declared_dead_proves_it(nodes: Any, name: str):
    found = report(recorded(name), LATER, nodes)
    assert (found.state, found.reason, found.is_proven_gone) == (base.FAILED, base.NODE_LOST, True)


def test_a_node_that_was_not_shown_yet_is_not_gone():
    assert report(recorded("running"), NOW, {}).state == base.RUNNING


def pod_gc() -> Any:
    """A pod that the pod garbage collector wrote off: its node object was removed while the container ran."""
    gone = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByPodGC",
        "message": "PodGC: node gone",
    }
    raw = recorded("running", phase="Failed")
    raw["status"]["conditions"].append(gone | {"lastTransitionTime": "2026-11-21T03:00:15Z"})
    raw["metadata"]["deletionTimestamp"] = "2026-11-21T03:00:15Z"
    return raw


def test_a_pod_that_was_written_off_is_gone_with_its_node_and_not_before():
    found = report(pod_gc(), nodes={})
    assert (found.state, found.reason, found.is_proven_gone) == (base.FAILED, base.NODE_LOST, True)
    back = report(
        pod_gc(), nodes=NODES
    )  # the node came back under its name, perhaps with the container on it
    assert (back.state, back.is_proven_gone) == (base.FAILED, False)


# What a kubelet says that the recorded one was not brought to say


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}, base.EVICTED),
        ({"reason": "Terminated", "message": "Terminated for an imminent node shutdown."}, base.EVICTED),
        ({"reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"}, base.UNSCHEDULABLE),
        ({"reason": "UnexpectedAdmissionError", "message": "Allocate failed: no healthy devices"}, base.UNSCHEDULABLE),
        ({"reason": "NodeAffinity", "message": "Pod was rejected"}, base.UNSCHEDULABLE),
    ],
)  # fmt: skip
def test_a_pod_without_a_container_is_named_by_its_status(status: dict[str, str], reason: str):
    raw = recorded("running", phase="Failed", containerStatuses=[], **status)
    found = report(raw)
    assert (found.state, found.reason, found.exit_code, found.is_proven_gone) == (
        base.FAILED,
        reason,
        None,
        True,
    )
    assert status["message"].rstrip(".") in found.message


def ended(**terminated: Any) -> Any:
    raw = recorded("exit-3")
    raw["status"]["containerStatuses"][0]["state"]["terminated"] |= terminated
    return raw


def test_a_container_that_its_node_lost_has_no_exit_code():
    found = report(ended(reason="ContainerStatusUnknown", exitCode=137, message="could not be located"))
    assert (found.reason, found.exit_code) == (base.NODE_LOST, None)


def test_an_end_before_the_deletion_is_the_pods_own():
    raw = ended()
    raw["metadata"] |= {"deletionTimestamp": "2026-11-21T04:00:00Z", "deletionGracePeriodSeconds": 30}
    assert report(raw).reason == base.EXIT_CODE


@pytest.mark.parametrize(("name", "reason"), [("completed", base.COMPLETED), ("exit-3", base.EXIT_CODE)])
def test_a_stop_after_the_end_changes_nothing(name: str, reason: str):
    raw = recorded(name)
    raw["metadata"]["labels"][names.STOPPED] = names.AFTER_ITS_END
    raw["metadata"] |= {"deletionTimestamp": "2026-11-21T03:00:00Z", "deletionGracePeriodSeconds": 30}
    assert report(raw).reason == reason


def test_a_stop_that_ends_well_is_a_success():
    raw = recorded("completed")
    raw["metadata"]["labels"][names.STOPPED] = "true"
    assert (report(raw).state, report(raw).reason) == (base.SUCCEEDED, base.STOPPED)


def test_a_command_that_ends_beside_a_mesh_has_ended_but_is_not_gone():
    raw = recorded("exit-3", phase="Running")
    raw["status"]["containerStatuses"].insert(0, {"name": "istio-proxy", "state": {"running": {}}})
    found = report(raw)
    assert (found.state, found.reason, found.exit_code, found.is_proven_gone) == (
        base.FAILED,
        base.EXIT_CODE,
        3,
        False,
    )


def test_a_deletion_by_somebody_else_is_told_while_the_pod_still_runs():
    raw = recorded("running")
    raw["metadata"]["deletionTimestamp"] = "2026-11-21T03:00:15Z"
    found = report(raw)
    assert (found.state, found.reason) == (base.RUNNING, base.POD_DELETED)
    raw["metadata"]["labels"][names.STOPPED] = "true"
    assert (report(raw).state, report(raw).reason) == (base.RUNNING, "")


@pytest.mark.parametrize(("prepared", "reason"), [("True", base.PULLING_IMAGE), ("False", ""), (None, "")])
def test_a_container_that_is_being_created(prepared: str | None, reason: str):
    waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    conditions = [{"type": "PodReadyToStartContainers", "status": prepared}] if prepared else []
    raw = recorded("running", phase="Pending", containerStatuses=[waiting], conditions=conditions)
    assert (report(raw).state, report(raw).reason) == (base.STARTING, reason)
    is_late = prepared == "False"  # volumes or network never came
    assert (report(raw, LATER).state == base.FAILED) is is_late


def test_a_launcher_that_waits_for_its_hosts_says_so():
    waits = {"name": mpi.WAITING, "state": {"running": {}}}
    raw = recorded("running", phase="Pending", containerStatuses=[], initContainerStatuses=[waits])
    assert (report(raw).state, report(raw).reason) == (base.STARTING, "")
    assert "hosts" in report(raw).message


def test_a_pull_that_failed_is_told_the_same_while_the_kubelet_waits_for_the_next():
    raw = recorded("pull")
    (status,) = raw["status"]["containerStatuses"]
    waiting = status["state"]["waiting"]
    before = report(raw)
    assert waiting["reason"] == "ErrImagePull"
    words = f'Back-off pulling image "registry.invalid/nobody/knows:7": ErrImagePull: {waiting["message"]}'
    status["state"]["waiting"] = {"reason": "ImagePullBackOff", "message": words}
    assert report(raw) == before


def test_a_step_of_preparation_that_fails_is_told_in_its_words():
    waits = {
        "name": "wait-for-hosts",
        "state": {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}},
    }
    raw = recorded("running", phase="Pending", containerStatuses=[], initContainerStatuses=[waits])
    assert report(raw).reason == base.IMAGE_PULL_FAILED
    failed = {"name": "wait-for-hosts", "state": {"terminated": {"exitCode": 7, "reason": "Error"}}}
    main = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    raw = recorded("running", phase="Failed", containerStatuses=[main], initContainerStatuses=[failed])
    assert report(raw).reason == base.CONTAINER_NOT_CREATED
    assert "wait-for-hosts: Error: exit code 7" in report(raw).message


def test_holdings_are_what_bound_pods_have():
    (held,) = reports.holdings([recorded("running"), recorded("exit-3"), recorded("vanished-node")])
    assert (held.node, held.pod[0], held.devices) == (
        "node-a",
        "yard-team-a",
        (DeviceShare(0, 1000, 32768),),
    )
    edited = recorded("running")
    edited["metadata"]["annotations"][names.DEVICES] = "all of them"
    assert reports.holdings([edited])[0].devices == ()


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(RECORDED)),
    st.sampled_from(["phase", "conditions", "containerStatuses", "startTime"]),
)
def test_a_pod_with_a_hole_is_still_reported(name: str, hole: str):
    """Nothing is lost for want of a field: other versions and other kubelets leave some out."""
    raw = recorded(name)
    raw["status"].pop(hole, None)
    assert report(raw).state in (base.STARTING, base.RUNNING, base.SUCCEEDED, base.FAILED)
