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
    """Return a stream socket connected to a port of the pod. Raise ConnectionRefusedError if no process listens,
    EngineRefused if the pod does not run, EngineUnreachable if the cluster does not answer.

    Closing either side ends it. After the caller has shut down writing it can still read; the pod's process cannot do
    the same, because the protocol has no message for that.
    """
    decided, begun, errors = threading.Event(), set[int](), list[str]()

    def take(channel: int, data: bytes) -> bytes:
        # The first message on each channel contains only the port.
        if channel not in begun:
            begun.add(channel)
            return b""
        decided.set()
        # The stream is on channel 0, an error on channel 1.
        if channel == 0:
            return data
        errors.append(data.decode("utf-8", "replace").strip())
        raise ConnectionRefusedError(errors[0])

    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
    with pod_refusals(pod):
        channel = ChannelSocket(access, path, [("ports", str(port))], [V4_PROTOCOL], 0, take)
    decided.wait(_REFUSING_SECONDS)
    if errors:
        channel.near.close()
        raise ConnectionRefusedError(f"Port {port} of {pod}: {errors[0]}")
    return channel.near
