"""What is remembered of nodes: a heartbeat changes nothing of it."""

from __future__ import annotations

import copy
from typing import Any

from controlplane.engines.kubernetes.cluster_cache import _trim_node
from controlplane.kubernetes_api.reflector import Model

NODE: dict[str, Any] = {
    "metadata": {"name": "a", "resourceVersion": "5", "managedFields": [{"manager": "kubelet"}]},
    "spec": {},
    "status": {
        "images": [{"names": ["x"]}],
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-21T03:00:00Z"}],
    },
}


def later(version: str, heartbeat: str, status: str = "True") -> dict[str, Any]:
    node = copy.deepcopy(NODE)
    node["metadata"]["resourceVersion"] = version
    node["status"]["conditions"][0] |= {"lastHeartbeatTime": heartbeat, "status": status}
    return node


def test_a_heartbeat_is_no_news_and_an_end_of_them_is():
    model = Model(_trim_node)
    assert model.take(copy.deepcopy(NODE), is_gone=False)
    known = model.get("a")
    assert not model.take(later("6", "2026-11-21T03:00:10Z"), is_gone=False)
    assert model.get("a") is known, "what was made of it holds"
    assert model.take(later("7", "2026-11-21T03:00:20Z", status="Unknown"), is_gone=False)
    assert model.get("a")["status"]["conditions"] == [{"type": "Ready", "status": "Unknown"}]


def test_an_event_is_left_as_it_came():
    """The watch goes on from its version."""
    node = copy.deepcopy(NODE)
    _trim_node(node)
    assert node == NODE


def test_a_node_without_a_status_is_one():
    assert _trim_node({"metadata": {"name": "a"}, "spec": {}})["status"] == {"conditions": []}
