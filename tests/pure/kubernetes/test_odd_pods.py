"""One pod that makes no sense is told as that, once, and stops no other."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.engines import base
from controlplane.engines.kubernetes import inventory, names, reports
from controlplane.engines.kubernetes.cluster_cache import KnownReports
from controlplane.engines.kubernetes.config import ClusterProfile
from tests.pure.kubernetes.test_reports import NOW, RECORDED, node_of

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 10**30),
    st.floats(),
    st.text(st.characters(), max_size=5),
    st.sampled_from(["\x00", "0:1:2", "9999-99-99T99:99:99Z", "2026-11-21T03:00:06", "1e999", "²", "\u202e"]),
    st.just([]),
    st.just([None]),
    st.just({}),
)


def numbered(name: str, number: int) -> Any:
    raw = copy.deepcopy(RECORDED[name])
    raw["metadata"] |= {"name": f"pod-{number}", "uid": f"uid-{number}", "namespace": "yard-x"}
    return raw


def paths_of(tree: Any, *path: Any) -> list[tuple[Any, ...]]:
    """Where a value of a pod can be replaced: anywhere but in what tells which pod it is and where."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    below = [found for key, value in inner for found in paths_of(value, *path, key)]
    is_identity = len(path) < 2 or path[1] in ("name", "namespace", "uid", "labels", "nodeName")
    return below if is_identity else [path, *below]


def replaced(raw: Any, path: tuple[Any, ...], value: Any) -> Any:
    raw = copy.deepcopy(raw)
    inner = raw
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return raw


@settings(max_examples=400)
@given(data=st.data(), name=st.sampled_from(sorted(RECORDED)), value=ODD)
def test_what_no_cluster_should_say_of_a_pod_harms_that_pod_only(data: Any, name: str, value: Any):
    sane, raw = [numbered("running", 1), numbered("exit-3", 2)], numbered(name, 3)
    path = data.draw(st.sampled_from(paths_of(raw)))
    odd = replaced(raw, path, value)
    found = {report.name: report for report in KnownReports(node_of).of([odd, *sane], NOW)}
    assert len(found) == 3
    assert [found[f"pod-{number}"].reason for number in (1, 2)] == ["", base.EXIT_CODE]
    told = next(report for key, report in found.items() if key not in ("pod-1", "pod-2"))
    assert told.state in (base.STARTING, base.RUNNING, *base.FINAL_STATES)
    assert len(told.message) <= 500
    assert told.message.isprintable()
    if told.reason == base.POD_UNREADABLE:
        assert "yard-x/pod-3" in told.message
        assert not told.is_proven_gone


def test_a_pod_that_cannot_be_read_keeps_its_devices_and_is_logged_once(caplog: pytest.LogCaptureFixture):
    odd = numbered("running", 1)
    odd["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": "yesterday"}}
    known = KnownReports(node_of)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            (report,) = known.of([copy.deepcopy(odd)], NOW)  # each list brings a new object
    assert (report.state, report.reason, report.is_proven_gone) == (base.RUNNING, base.POD_UNREADABLE, False)
    assert [record.getMessage() for record in caplog.records] == [report.message]
    assert "yesterday" in report.message


def test_a_container_that_runs_since_nobody_knows_when_runs():
    raw = numbered("running", 1)
    raw["status"]["containerStatuses"][0]["state"] = {"running": {}}
    report = reports.pod_report(raw, node_of(raw), NOW)
    assert (report.state, report.reason, report.started_at) == (base.RUNNING, "", None)


def test_a_node_with_a_pod_of_which_nobody_knows_what_it_takes_gets_nothing_new():
    profile = ClusterProfile()
    amounts = {"cpu": "8", "memory": "64Gi", profile.gpu_resource: "4"}
    node: Any = {
        "metadata": {"name": "n", "uid": "u"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    other = copy.deepcopy(node) | {"metadata": {"name": "m", "uid": "v"}}
    odd: Any = {
        "metadata": {"namespace": "other", "name": "odd"},
        "spec": {"nodeName": "n", "containers": [{"resources": {"requests": {profile.gpu_resource: "two"}}}]},
    }
    ours: Any = {
        "metadata": {
            "namespace": "yard-x",
            "name": "ours",
            "labels": {names.INSTALLATION: profile.installation, names.PROJECT: "x"},
            "annotations": {names.DEVICES: "0:1000:\x00"},
        },
        "spec": {"nodeName": "n"},
    }
    found = inventory.node_reports([node, other], [odd, ours], profile)
    assert [(one.name, one.is_closed, len(one.devices)) for one in found] == [("m", False, 4), ("n", True, 4)]
    assert "other/odd" in found[1].message
