"""Settings of engines whose nodes are declared instead of discovered: as JSON, and as entries of
TRAINYARD_CLUSTERS."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from controlplane import fields
from controlplane.clusters.settings import SettingsInvalid
from controlplane.fields import FieldError, Refused

NVML = "nvml"
MOST_NODES = 10_000
MAX_DEVICES_PER_NODE = 64
DEFAULT_POOL = "default"
NODE_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_NODE = re.compile(
    r"(?P<name>[a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?)"
    r"=(?P<devices>\d{1,3})x(?P<memory_mib>\d{1,8})"
    r"(?:@(?P<pool>[a-z0-9](?:[-a-z0-9]{0,48}[a-z0-9])?))?"
)


def read_nodes(sent: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return settings in the form {"nodes": {"dgx1-1": {"devices": 8, "memory_mib": 32768, "pool": "default"}}}, or
    {"nodes": "nvml"} to detect this machine's GPUs. Raise SettingsInvalid for None and any other form."""
    if sent is None:
        raise SettingsInvalid(
            [FieldError("", "required", "Give a value for settings: the nodes of the cluster.")]
        )
    try:
        return _read(sent)
    except Refused as refused:
        raise SettingsInvalid([FieldError(refused.suffix, refused.code, refused.detail)]) from refused


def entry_reader(*, may_detect: bool) -> Callable[[str], tuple[dict[str, Any], dict[str, Any]]]:
    """Return a reader of an entry such as `dgx1-1=8x32768,dgx1-2=8x32768@pool` or, with `may_detect`, `nvml` (this
    machine's GPUs). It returns (settings, {}), because there are no credentials, and raises ValueError for any other
    text."""

    def read(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        if text == NVML and may_detect:
            return {"nodes": NVML}, {}
        nodes: dict[str, dict[str, int | str]] = {}
        for node_text in text.split(","):
            name, node = _entry(node_text.strip())
            if name in nodes:
                raise ValueError(f"names the node {name!r} twice.")
            nodes[name] = node
        return {"nodes": nodes}, {}

    return read


def _read(value: Mapping[str, Any]) -> dict[str, Any]:
    if set(value) != {"nodes"}:
        raise Refused(
            "bad_settings", 'Settings are {"nodes": {"dgx1-1": {"devices": 8, "memory_mib": 32768}}}.'
        )
    nodes = value["nodes"]
    if nodes == NVML:
        return dict(value)
    if not isinstance(nodes, dict) or not 1 <= len(nodes) <= MOST_NODES:
        raise Refused("bad_settings", f"Name 1 to {MOST_NODES} nodes.", "/nodes")
    return {"nodes": {name: _read_node(name, node) for name, node in nodes.items()}}


def _read_node(name: str, node: Any) -> dict[str, Any]:
    where = "/nodes/" + fields.pointer_part(name)
    if not NODE_NAME.fullmatch(name):
        raise Refused(
            "not_a_node_name", "A node's name is made of DNS labels, at most 253 characters.", where
        )
    if not isinstance(node, dict) or not set(node) <= {"devices", "memory_mib", "pool"}:
        raise Refused(
            "bad_settings", 'A node is {"devices": 8, "memory_mib": 32768, "pool": "default"}.', where
        )
    try:
        return {
            "devices": fields.whole(0, MAX_DEVICES_PER_NODE)(node.get("devices")),
            "memory_mib": fields.whole(1, 10_000_000)(node.get("memory_mib")),
            "pool": fields.dns_label(50)(node.get("pool", DEFAULT_POOL)),
        }
    except Refused as refused:
        raise Refused(refused.code, refused.detail, where) from refused


def _entry(text: str) -> tuple[str, dict[str, int | str]]:
    match = _NODE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not NAME=GPUSxMIB, like dgx1-1=8x32768.")
    devices, memory_mib = int(match["devices"]), int(match["memory_mib"])
    if devices > MAX_DEVICES_PER_NODE or memory_mib < 1:
        raise ValueError(f"{text!r} needs 0 to {MAX_DEVICES_PER_NODE} GPUs of 1 MiB or more.")
    return match["name"], {
        "devices": devices,
        "memory_mib": memory_mib,
        "pool": match["pool"] or DEFAULT_POOL,
    }
