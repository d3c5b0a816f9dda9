"""Check what an admin submits for a cluster, for REST and pages; checks that need the cluster itself are in
preflight.

A refusal never quotes a kubeconfig, which contains secrets.
"""

import re
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from controlplane import fields
from controlplane.actions.clusters import ENGINES
from controlplane.actions.errors import Invalid, invalid
from controlplane.clusters.settings import SettingsInvalid, parse_settings
from controlplane.fields import FieldError, Refused

KUBECONFIG_BYTES = 256 * 1024
CREDENTIAL_FIELDS = ("kubeconfig", "context", "in_cluster", "allow_exec")
MOST_NODES = 10_000
NODE_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")


def settings_for(engine: str, sent: Mapping[str, Any] | None, *, is_new: bool) -> dict[str, Any]:
    """Return the checked settings of a cluster of this engine. Raises Invalid, pointing below /settings."""
    if engine not in ENGINES:
        raise invalid("/engine", "unknown_engine", f"The engine is one of: {', '.join(ENGINES)}.")
    if engine == "kubernetes":
        return _knobs(sent or {})
    if sent is None and is_new:
        raise invalid("/settings", "required", "Give a value for settings: the nodes of the cluster.")
    try:
        return _nodes_settings(sent or {})
    except Refused as refused:
        raise invalid(f"/settings{refused.suffix}", refused.code, refused.detail) from refused


def credentials_for(engine: str, sent: Mapping[str, Any], *, is_new: bool) -> dict[str, Any]:
    """Return the submitted CREDENTIAL_FIELDS in the form to encrypt, {} for none. Raises Invalid.

    A new cluster needs a kubeconfig or `in_cluster`; later, a context alone selects another one of the same
    kubeconfig.
    """
    given = {name: sent[name] for name in CREDENTIAL_FIELDS if sent.get(name)}
    if engine != "kubernetes":
        if given:
            detail = f"A {engine} cluster is reached without credentials; leave it out."
            raise Invalid(*(FieldError(f"/{name}", "not_for_this_engine", detail) for name in given))
        return {}
    if "allow_exec" in given and not settings.ALLOW_KUBECONFIG_EXEC:
        detail = (
            "A login program runs on this server with its rights; the server's operator must allow it:"
            " TRAINYARD_ALLOW_KUBECONFIG_EXEC=yes. A service account's token needs no program."
        )
        raise invalid("/allow_exec", "exec_not_allowed", detail)
    if "in_cluster" in given:
        if len(given) > 1:
            name = next(name for name in given if name != "in_cluster")
            raise invalid(f"/{name}", "one_of_two", "Give a kubeconfig or in_cluster, not both.")
    elif "kubeconfig" in given:
        _check_kubeconfig(given["kubeconfig"], given.get("context", ""))
    elif is_new:
        raise invalid(
            "/kubeconfig", "required", "Give a kubeconfig, or in_cluster where the server runs in it."
        )
    return given


def _knobs(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Keep only submitted settings, so that changed defaults apply to existing clusters."""
    try:
        read = parse_settings(sent)
    except SettingsInvalid as refused:
        errors = (
            FieldError(f"/settings{error.pointer}", error.code, error.detail) for error in refused.errors
        )
        raise Invalid(*errors) from refused
    return {name: list(read[name]) if isinstance(read[name], tuple) else read[name] for name in sent}


def _check_kubeconfig(text: str, context: str) -> None:
    """Refuse faults visible in the text; the preflight finds the others."""
    from controlplane.kubernetes_api.kubeconfig import (  # brings YAML
        KubeconfigUnreadable,
        chosen_context,
        read_kubeconfig,
    )

    try:
        config = read_kubeconfig(text)
    except KubeconfigUnreadable as error:
        raise invalid("/kubeconfig", "kubeconfig_unreadable", str(error)) from None
    try:
        chosen_context(config, context)
    except KubeconfigUnreadable as error:
        raise invalid("/context", "context_unknown", str(error)) from None


def _nodes_settings(value: Mapping[str, Any]) -> dict[str, Any]:
    """{"nodes": {"dgx1-1": {"devices": 8, "memory_mib": 32768, "pool": "default"}}}, or {"nodes": "nvml"}."""
    if set(value) != {"nodes"}:
        raise Refused(
            "bad_settings", 'Settings are {"nodes": {"dgx1-1": {"devices": 8, "memory_mib": 32768}}}.'
        )
    nodes = value["nodes"]
    if nodes == "nvml":
        return dict(value)
    if not isinstance(nodes, dict) or not 1 <= len(nodes) <= MOST_NODES:
        raise Refused("bad_settings", f"Name 1 to {MOST_NODES} nodes.", "/nodes")
    return {"nodes": {name: _node_settings(name, node) for name, node in nodes.items()}}


def _node_settings(name: str, node: Any) -> dict[str, Any]:
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
            "devices": fields.whole(0, 64)(node.get("devices")),
            "memory_mib": fields.whole(1, 10_000_000)(node.get("memory_mib")),
            "pool": fields.dns_label(50)(node.get("pool", "default")),
        }
    except Refused as refused:
        raise Refused(refused.code, refused.detail, where) from refused
