"""Terminals and ports of a container on a real node."""

import asyncio
import hashlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from controlplane.engines.base import NO_SUCH_POD, POD_NOT_RUNNING, EngineRefused, EngineUnreachable, Shell
from controlplane.engines.kubernetes import port_forward
from controlplane.engines.kubernetes.exec import NO_SHELL, PodShell
from controlplane.engines.kubernetes.port_forward import open_port
from controlplane.kubernetes_api.channel_socket import STREAMS
from controlplane.kubernetes_api.credentials import Access, access_of_kubeconfig
from controlplane.kubernetes_api.event_loops import event_loop
from tests.kube import KubeCluster
from tests.kubernetes.proxy import Faults, fault_proxy
from tests.waiting import wait_until
from tools.kube.parts import IMAGE

PORT = 8888
ECHO = f"""
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            if data == b"bye":
                return
            self.request.sendall(data)
        self.request.sendall(b"that was all")
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("0.0.0.0", {PORT}), Echo).serve_forever()
"""
PODS = "/api/v1/namespaces/streams/pods"


@pytest.fixture(scope="module")
def access(kube_node: KubeCluster) -> Iterator[Access]:
    kube_node.must("POST", "/api/v1/namespaces", {"metadata": {"name": "streams"}})
    kube_node.must("POST", PODS, pod("echo", ["python3", "-c", ECHO]))
    wait_until(lambda: phase(kube_node, "echo") == "Running", 30, "the pod")
    access = access_of_kubeconfig(kube_node.kubeconfig_text)
    wait_until(lambda: answers(access), 10, "the echo server")
    yield access
    kube_node.must("DELETE", f"{PODS}/echo?gracePeriodSeconds=0")


def pod(name: str, command: list[str], **fields) -> dict:
    container = {"name": "main", "image": IMAGE, "command": command, **fields}
    spec = {"nodeName": "node-a", "restartPolicy": "Never", "containers": [container]}
    return {"metadata": {"name": name, "namespace": "streams"}, "spec": spec}


def phase(kube: KubeCluster, name: str) -> str:
    return kube.must("GET", f"{PODS}/{name}")["status"].get("phase", "")


def answers(access: Access) -> bool:
    try:
        with open_port(access, "streams", "echo", PORT) as stream:
            stream.sendall(b"?")
            return stream.recv(1) == b"?"
    except ConnectionRefusedError:
        return False


def shell_in(access: Access, name: str = "echo") -> Shell:
    return PodShell(access, "streams", name, 100, 30)


def read_until(shell: Shell, word: bytes) -> bytes:
    output = b""
    while word not in output and (data := shell.read()):
        output += data
    return output


def processes(kube: KubeCluster) -> str:
    """Command lines; the dead that nobody has buried have none."""
    listed = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    return kube.kubectl("exec", "-n", "streams", "echo", "--", "sh", "-c", listed)


def open_streams() -> int:
    return len(asyncio.all_tasks(event_loop(STREAMS)))


def test_a_shell_is_bash_of_the_right_size_and_tells_its_exit_code(access):
    shell = shell_in(access)
    shell.write(b"stty size; echo $((6*7)) ${BASH_VERSION%%.*}; exit 3\n")
    output = read_until(shell, b"never")
    assert b"30 100\r\n42 5\r\n" in output
    assert shell.close() == 3
    assert shell.close() is None
    assert open_streams() == 0


def test_a_shell_that_ends_well(access):
    shell = shell_in(access)
    shell.write(b"exit\n")
    while shell.read():
        pass
    assert shell.close() == 0


def test_resize(access):
    shell = shell_in(access)
    shell.resize(50, 20)
    shell.write(b"stty size\n")
    assert b"20 50" in read_until(shell, b"20 50")
    assert shell.close() is None


def test_close_ends_all_that_runs_in_it_and_nothing_else(access, kube_node):
    other, shell = shell_in(access), shell_in(access)
    other.write(b"sleep 1001; true\n")
    shell.write(b"trap '' HUP; (trap '' HUP; sleep 1002; true)\n")
    wait_until(lambda: processes(kube_node).count("sleep 100") == 2, 10, "two sleeps")
    assert shell.close() is None
    wait_until(lambda: processes(kube_node).count("sleep 100") == 1, 10, "the end of one")
    other.close()
    wait_until(
        lambda: "sleep 100" not in processes(kube_node) and "bash" not in processes(kube_node), 10, "the rest"
    )
    assert "python3" in processes(kube_node)


def test_a_terminal_that_is_full_takes_nothing_and_loses_nothing(access):
    shell = shell_in(access)
    shell.write(b"stty raw -echo; echo rea''dy; head -c 5000000 | md5sum; exit 0\n")
    read_until(shell, b"ready")
    text, sent, refusals = b"0123456789" * 500_000, 0, 0
    while sent < len(text):
        taken = shell.write(text[sent:])
        sent, refusals = sent + taken, refusals + (taken == 0)
    assert refusals > 0
    digest = hashlib.md5(text, usedforsecurity=False).hexdigest()
    assert digest.encode() in read_until(shell, b"  -")
    shell.close()


def test_where_there_is_no_shell(access, kube_node):
    with pytest.raises(EngineRefused) as refused:
        shell_in(access, "nobody")
    assert refused.value.code == NO_SUCH_POD
    kube_node.must("POST", PODS, pod("ended", ["true"]))
    wait_until(lambda: phase(kube_node, "ended") == "Succeeded", 30, "its end")
    with pytest.raises(EngineRefused) as refused:
        shell_in(access, "ended")
    assert refused.value.code == POD_NOT_RUNNING


def test_an_image_without_a_shell_says_so(access, kube_node):
    """A container in which `sh` is not on the path is as good as an image without one."""
    environment = [{"name": "PATH", "value": "/nowhere"}]
    kube_node.must("POST", PODS, pod("bare", ["/bin/sleep", "1000"], env=environment))
    wait_until(lambda: phase(kube_node, "bare") == "Running", 30, "the pod")
    with pytest.raises(EngineRefused) as refused:
        shell_in(access, "bare")
    assert refused.value.code == NO_SHELL
    kube_node.must("DELETE", f"{PODS}/bare?gracePeriodSeconds=0")


def test_a_shell_ends_with_its_pod(access, kube_node):
    kube_node.must("POST", PODS, pod("brief", ["sleep", "1000"]))
    wait_until(lambda: phase(kube_node, "brief") == "Running", 30, "the pod")
    shell = shell_in(access, "brief")
    kube_node.must("DELETE", f"{PODS}/brief?gracePeriodSeconds=0")
    while shell.read():
        pass
    shell.close()
    assert open_streams() == 0


def test_a_shell_whose_connection_is_cut_ends(kube_node, access):
    with fault_proxy(kube_node) as proxy:
        shell = shell_in(proxy.access())
        proxy.cut_all()
        while shell.read():
            pass
        assert shell.close() is None


def test_a_proxy_that_refuses(kube_node):
    with fault_proxy(kube_node) as proxy:
        proxy.faults = Faults(failing=1)
        with pytest.raises(EngineUnreachable):
            shell_in(proxy.access())
        proxy.faults = Faults()
        with pytest.raises(EngineRefused) as refused:
            shell_in(proxy.access(token="wrong"))
        assert refused.value.code == "not_permitted"


def test_a_port_carries_megabytes_both_ways_at_once(access):
    data = os.urandom(5_000_000)
    with open_port(access, "streams", "echo", PORT) as stream:
        writer = threading.Thread(target=stream.sendall, args=(data,))
        writer.start()
        got = bytearray()
        while len(got) < len(data):
            got += stream.recv(1 << 20)
        writer.join()
    assert bytes(got) == data
    wait_until(lambda: open_streams() == 0, 20, "the end of the thread")


def test_a_port_is_closed_from_either_side(access):
    with open_port(access, "streams", "echo", PORT) as stream:
        stream.sendall(b"bye")
        assert stream.recv(10) == b""
    stream = open_port(access, "streams", "echo", PORT)
    stream.sendall(b"last words")
    stream.close()
    wait_until(lambda: open_streams() == 0, 15, "the end of the threads")


def test_who_stops_writing_still_hears(access):
    with open_port(access, "streams", "echo", PORT) as stream:
        stream.sendall(b"hello")
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(10) == b"hello"


def test_a_port_on_which_nobody_listens(access, monkeypatch):
    # A slow machine takes longer to refuse than a caller may wait.
    monkeypatch.setattr(port_forward, "_REFUSING_SECONDS", 60)
    with pytest.raises(ConnectionRefusedError, match="refused"):
        open_port(access, "streams", "echo", 9)
    wait_until(lambda: open_streams() == 0, 20, "the end of the thread")


def test_a_port_of_a_pod_that_is_not_there(access):
    with pytest.raises(EngineRefused) as refused:
        open_port(access, "streams", "nobody", PORT)
    assert refused.value.code == NO_SUCH_POD
