"""An isolated environment ("cell") for a cluster: its own processes, mounts and network, which end with its
first process.

When that process is killed, in whatever way, the kernel kills all processes in the cell and removes its
mounts and interfaces. Only directories can be left: a state directory and control groups, which the outer
process removes, or, if that was killed too, the next start (tools/kube/sweep.py).

    this machine                                    the cell
    tyk<slot> 198.18.<slot>.1  <-- veth pair -->   eth0 198.18.<slot>.2, pods in 198.19.<slot>.0/24
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x02000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 4096, 16384, 1 << 18, 1 << 20
PR_SET_PDEATHSIG = 1
SECONDS_TO_DIE = 10
SLOTS = range(1, 255)
# Directories to which node programs write at fixed paths; empty in the cell.
HIDDEN = ("/run", "/tmp", "/var/lib", "/var/log")
SERVICE_ADDRESS, DNS_ADDRESS = "10.96.0.1", "10.96.0.10"


class CannotIsolate(Exception):
    """This machine does not allow namespaces or a separate network; the message is one sentence with the
    reason."""


@dataclass(frozen=True, slots=True)
class Network:
    """The addresses of one cell. 198.18.0.0/15 is reserved for tests, so it collides with no real network."""

    slot: int

    @property
    def link(self) -> str:
        """Return the name of our end of the veth pair."""
        return f"tyk{self.slot}"

    @property
    def outside(self) -> str:
        """Return this machine's address, as seen from the cell."""
        return f"198.18.{self.slot}.1"

    @property
    def inside(self) -> str:
        """Return the cell's address, that of its API server and node."""
        return f"198.18.{self.slot}.2"

    @property
    def pods(self) -> str:
        """Return the network of the cell's pods."""
        return f"198.19.{self.slot}.0/24"


def fork() -> int:
    """Fork a process into a new PID namespace, whose first process is the child; return as os.fork. Later children
    of the parent are in its own namespace. Raises CannotIsolate if the machine does not allow it."""
    # Applies to all children from now on, so the parent returns to its own namespace after the fork.
    _unshare(CLONE_NEWPID)
    child = os.fork()
    if child != 0:
        own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        _libc.setns(own, CLONE_NEWPID)
        os.close(own)
    return child


def detach_rest() -> None:
    """Give this process its own mounts and network; it is killed when its parent ends. Raises CannotIsolate if the
    machine does not allow it."""
    if _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise CannotIsolate("A process cannot be made to die with its parent here.")
    _unshare(CLONE_NEWNS | CLONE_NEWNET)
    # First of all, so that no later mount appears outside of the cell.
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def connect(pid: int) -> Network:
    """Connect this machine to the cell of process `pid` by a veth pair, and return the network. The interface's
    name serves as the lock on its slot. Raises CannotIsolate if all slots are taken or the machine does not allow
    it."""
    error = ""
    for network in map(Network, SLOTS):
        cable = f"link add {network.link} type veth peer name eth0 netns {pid}"
        error = _ip(cable)
        if not error:
            for words in (
                f"addr add {network.outside}/30 dev {network.link}",
                f"link set {network.link} up",
                f"route add {network.pods} via {network.inside}",
            ):
                must_ip(words)
            return network
        if "File exists" not in error:
            break
    raise CannotIsolate(f"No network could be made for the cluster: {error}")


def disconnect(network: Network) -> None:
    """Remove our end of the veth pair, if it exists."""
    _ip(f"link del {network.link}")


def furnish_network(network: Network) -> None:
    """Configure the network inside the cell: its addresses, including those of its API service and name
    server, and forwarding for pods.

    There is no route to the outside: pulling a missing image fails at once.
    """
    for words in (
        "link set lo up",
        f"addr add {SERVICE_ADDRESS}/32 dev lo",
        f"addr add {DNS_ADDRESS}/32 dev lo",
        f"addr add {network.inside}/30 dev eth0",
        "link set eth0 up",
    ):
        must_ip(words)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def furnish_mounts(state_dir: Path, needed: list[Path]) -> None:
    """Mount inside the cell: its own /proc and empty HIDDEN directories, except for `state_dir` and the `needed`
    paths, which keep their places."""
    mount("proc", "/proc", "proc", 0)
    (state_dir / "before").mkdir(exist_ok=True)
    # Addressed by descriptor, since the state directory itself usually lies in a directory that is hidden
    # now.
    before = f"/proc/self/fd/{os.open(state_dir / 'before', os.O_PATH)}"
    for hidden in HIDDEN:
        Path(before + hidden).mkdir(parents=True, exist_ok=True)
        mount(hidden, before + hidden, "", MS_BIND | MS_REC)
        mount("tmpfs", hidden, "tmpfs", 0)
    for path in (state_dir, *needed):
        if any(path.is_relative_to(hidden) for hidden in HIDDEN):
            path.mkdir(parents=True, exist_ok=True)
            mount(f"{before}{path}", str(path), "", MS_BIND | MS_REC)
    (state_dir / "resolv.conf").touch()
    mount(str(state_dir / "resolv.conf"), "/etc/resolv.conf", "", MS_BIND)
    for name, place in (
        ("kubelet", "/var/lib/kubelet"),
        ("logs", "/var/log"),
        ("volumes", "/tmp/hostpath_pv"),
    ):
        (state_dir / name).mkdir(exist_ok=True)
        Path(place).mkdir(parents=True, exist_ok=True)
        mount(str(state_dir / name), place, "", MS_BIND)
    # Last of all: a kubelet and its container runtime pass mounts to each other.
    mount("none", "/", "", MS_REC | MS_SHARED)


def cgroup_of(state_dir: Path) -> str:
    """Return the name of the control group of a cluster's containers; equal state directories give equal names."""
    return f"trainyard-kube-{hashlib.sha256(bytes(state_dir)).hexdigest()[:12]}"


def cgroup_dirs(name: str) -> list[Path]:
    """Return the directories of a control group, existing or not, in each hierarchy of this machine."""
    root = Path("/sys/fs/cgroup")
    hierarchies = (
        [root]
        if (root / "cgroup.controllers").exists()
        else [path for path in root.iterdir() if path.is_dir()]
    )
    return [hierarchy / name for hierarchy in hierarchies]


def enter_cgroups(name: str) -> None:
    """Create the control group in each hierarchy, move this process into it, and make it the root as seen from
    here.

    All containers are then below it, wherever their runtime creates them, and can be found."""
    for path in cgroup_dirs(name):
        path.mkdir(exist_ok=True)
        # In cgroup version 1 these are empty at first, and no process can enter before they are set.
        if (path / "cpuset.cpus").exists():
            for file in ("cpuset.cpus", "cpuset.mems"):
                (path / file).write_text((path.parent / file).read_text())
        (path / "cgroup.procs").write_text("0")
    _unshare(CLONE_NEWCGROUP)
    for path in cgroup_dirs(name):
        # In cgroup version 2 a group with processes cannot have subgroups with controllers.
        if (path / "cgroup.controllers").exists():
            (path / "cell").mkdir()
            (path / "cell" / "cgroup.procs").write_text("0")
        mount(str(path), str(path.parent), "", MS_BIND)


def remove_cgroups(name: str) -> None:
    """Remove the group and its subgroups. Waits at most SECONDS_TO_DIE for each."""
    for top in cgroup_dirs(name):
        for directory, _, _ in os.walk(top, topdown=False):
            # The group's processes may still be dying.
            deadline = time.monotonic() + SECONDS_TO_DIE
            while not _removed(directory) and time.monotonic() < deadline:
                time.sleep(0.01)


def _removed(group: str) -> bool:
    try:
        os.rmdir(group)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def mount(source: str, target: str, kind: str, flags: int) -> None:
    """Call mount(2) with these arguments. Raises CannotIsolate if it fails."""
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, None) != 0:
        raise CannotIsolate(f"{source} cannot be mounted on {target}: {os.strerror(ctypes.get_errno())}.")


def must_ip(words: str) -> None:
    """Run `ip` with these arguments, separated by blanks. Raises CannotIsolate if it fails."""
    if error := _ip(words):
        raise CannotIsolate(f"`ip {words}` failed: {error}")


def _ip(words: str) -> str:
    """Run `ip` with these arguments, separated by blanks; return "" on success, else its error message."""
    result = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stderr.strip() or f"exit code {result.returncode}"


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        raise CannotIsolate(f"This machine gives no namespaces: {os.strerror(ctypes.get_errno())}.")
