"""Connections to ports of pods, by the API server's port-forward."""

from __future__ import annotations

import socket
import threading

from controlplane.engines.kubernetes.api_errors import pod_refusals
from controlplane.kubernetes_api.channel_socket import V4_PROTOCOL, ChannelSocket
from controlplane.kubernetes_api.credentials import Access

# A refusal arrives within 10 ms on one machine; a later error ends the stream without a reason.
_REFUSING_SECONDS = 0.05


def open_port(access: Access, namespace: str, pod: str, port: int) -> socket.socket:
    """Return a stream connected to a port of the pod. Closing either side ends it. After the caller has shut down
    writing it can still read; the pod's process cannot do the same, since the protocol has no message for that. Raise
    ConnectionRefusedError if no process listens, EngineRefused, EngineUnreachable."""
    messages = _PortMessages()
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
    with pod_refusals(pod):
        channel = ChannelSocket(access, path, [("ports", str(port))], [V4_PROTOCOL], 0, messages.take)
    messages.decided.wait(_REFUSING_SECONDS)
    if messages.error:
        channel.near.close()
        raise ConnectionRefusedError(f"Port {port} of {pod}: {messages.error}")
    return channel.near


class _PortMessages:
    """The messages of a forwarded port: the stream on channel 0, an error on channel 1. The first message on each
    contains only the port."""

    def __init__(self) -> None:
        self.decided = threading.Event()
        self.error = ""
        self._begun: set[int] = set()

    def take(self, channel: int, data: bytes) -> bytes:
        if channel not in self._begun:
            self._begun.add(channel)
            return b""
        self.decided.set()
        if channel == 0:
            return data
        self.error = data.decode("utf-8", "replace").strip()
        raise ConnectionRefusedError(self.error)
