"""The worker for long commands, as `make up` runs it: killed in the middle of one, its successor begins it again."""

import socket
from pathlib import Path

import psutil

from tests.servers import ControlPlane, control_plane
from tests.waiting import wait_until

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
users: [{name: u, user: {token: t}}]
"""


def state_of(running: ControlPlane) -> dict[str, object]:
    status: dict[str, object] = running.call("GET", "/api/v1/clusters/silent")[1]["status"]
    return status


def owner_of(connection: socket.socket) -> int:
    """The process at the other end."""
    port = connection.getpeername()[1]
    found = (one for one in psutil.net_connections("tcp4") if one.laddr and one.laddr.port == port)
    return next(one.pid for one in found if one.pid is not None)


def test_a_check_whose_worker_is_killed_is_made_by_the_next(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, control_plane(tmp_path) as running:
        silent.settimeout(60)
        body = {"name": "silent", "engine": "kubernetes"}
        body["kubeconfig"] = KUBECONFIG % silent.getsockname()[1]
        status, answer = running.call("POST", "/api/v1/clusters", body)
        assert status in {201, 202}, answer
        first, _ = silent.accept()
        worker = running.children()["tasks"]
        assert owner_of(first) == worker.pid
        worker.kill()
        second, _ = silent.accept()  # the claim's expiry would take half a minute
        wait_until(lambda: "tasks" in running.children(), what="the next worker")
        assert owner_of(second) == running.children()["tasks"].pid != worker.pid
        assert state_of(running)["is_checking"]
        silent.close()
        for connection in (first, second):
            connection.close()
        wait_until(lambda: state_of(running)["state"] == "refused", timeout=90, what="the check's end")
