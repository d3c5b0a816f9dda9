"""What the control plane asks of an engine, and the plain data that goes in and out.

An engine runs pods on nodes. It knows nothing of projects' quotas, of rows or of Django. Every engine
passes the one contract suite in tests/contract. All calls are safe to repeat, and no call keeps the
engine's only copy of a fact in memory: another process that opens the same engine sees the same pods.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from controlplane.logstore.reader import LogPage
from controlplane.remote_errors import Refused, Unreachable

# Pod states. `succeeded` and `failed` are final.
STARTING = "starting"
RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"
FINAL_STATES = frozenset({SUCCEEDED, FAILED})

# Reason codes of a pod's state. The control plane shows `message` beside them.
COMPLETED = "completed"
EXIT_CODE = "exit_code"  # ended with an exit code other than 0
KILLED = "killed"  # ended by a signal that we did not send
STOPPED = "stopped"  # ended because stop() was called
OUT_OF_MEMORY = "out_of_memory"
COMMAND_NOT_FOUND = "command_not_found"
COMMAND_NOT_EXECUTABLE = "command_not_executable"
WORKING_DIR_MISSING = "working_dir_missing"
SHIM_LOST = "shim_lost"  # the supervisor of the pod was killed; its exit code is not known
NODE_LOST = "node_lost"  # also a restart of the machine
UNSCHEDULABLE = "unschedulable"  # the cluster cannot place it where it was sent
EVICTED = "evicted"  # by the cluster: disk or memory pressure, a node drain, a taint
POD_DELETED = "pod_deleted"  # by somebody else, behind our back
POD_LOST = "pod_lost"  # it was started, and the engine is certain that there is no such pod
PREEMPTED = "preempted"  # by the cluster's own scheduler, for a job that was owed its devices
IMAGE_PULL_FAILED = "image_pull_failed"
CONTAINER_NOT_CREATED = "container_not_created"  # a missing secret, a volume that cannot be mounted
PULLING_IMAGE = "pulling_image"  # while starting
POD_UNREADABLE = "pod_unreadable"  # while it goes on: what the cluster shows of it makes no sense to us
WAITING_FOR_NODE = "waiting_for_node"  # while starting: the cluster's scheduler has not bound it yet

# Codes of EngineRefused.
IMAGE_UNKNOWN = "image_unknown"
NO_SUCH_NODE = "no_such_node"
NO_SUCH_DEVICE = "no_such_device"
NO_SUCH_POD = "no_such_pod"
POD_NOT_RUNNING = "pod_not_running"
POD_NOT_GONE = "pod_not_gone"
INVALID_POD = "invalid_pod"
NOT_SUPPORTED = "not_supported"
QUOTA_REFUSED = "quota_refused"  # by the cluster's own quota object
ADMISSION_REFUSED = "admission_refused"  # by a webhook, a policy or the API's validation
NAMESPACE_NOT_OURS = "namespace_not_ours"
NOT_PERMITTED = "not_permitted"  # our account in the cluster may not do this
NAME_TAKEN = "name_taken"  # an object of this name exists and is not ours
WAITING_FOR_OPERATOR = "waiting_for_operator"  # an operator of the cluster has not made the pod yet
DEFINITION_MISSING = "definition_missing"  # the cluster does not know this kind of object (any more)
CANNOT_SHARE = "cannot_share"  # this node gives out whole GPUs only
CREDENTIALS_REFUSED = "credentials_refused"  # the cluster does not know us (any more)
CLUSTER_FAILED = "cluster_failed"  # it answers, and fails at this again and again

# Ends that say nothing of the job: it goes back to the queue, and no retry of its own is used up. Nodes and devices
# may vanish between the decision to send it there and its start; quotas, credentials and webhooks are put right.
DISRUPTIONS = frozenset(
    {
        NODE_LOST, POD_LOST, UNSCHEDULABLE, EVICTED, POD_DELETED, PREEMPTED, NO_SUCH_NODE, NO_SUCH_DEVICE,
        QUOTA_REFUSED, CREDENTIALS_REFUSED, CLUSTER_FAILED, DEFINITION_MISSING,
    }
)  # fmt: skip

# Capabilities.
SHELL = "shell"
USAGE = "usage"
FRACTIONS = "fractions"
WRITES_LOG_STORE = "writes_log_store"  # pods' output is in PodSpec.log_path without a collector
REACHES_PORTS = "reaches_ports"  # open_port works
MEMBERSHIP = "membership"  # a MembershipEngine: elastic jobs are resized while they run
HAS_CATALOGUE = "has_catalogue"  # images are names of the image catalogue; elsewhere a registry has them

Capabilities: TypeAlias = frozenset[str]
Address: TypeAlias = tuple[str, int]


# Every remote system fails in these two ways; the clients below the engines raise them too.
EngineUnreachable = Unreachable
EngineRefused = Refused


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One GPU of a node. `is_foreign`: a pod that is not ours holds it."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node. `pool` is the name of its node pool, `labels` are the engine's own.

    `device_parts`: into how many equal parts each device is given out, 1 for whole devices only; a share is rounded up
    to parts. `is_one_part_per_pod`: and no pod gets more than one of them.

    `extras`: what jobs may ask for of it by the cluster's names: whole units, less what pods of others hold.

    `is_closed`: it works, but its cluster gives it nothing new, since somebody cordoned or tainted it there.
    """

    name: str
    pool: str
    devices: tuple[DeviceReport, ...]
    milli_cpus: int
    memory_mib: int
    is_ready: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    is_closed: bool = False
    device_parts: int = 1000
    is_one_part_per_pod: bool = False
    extras: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What a pod holds of one device: 1,000 milli-GPUs is all of it; `memory_mib` is its memory there."""

    index: int
    milli_gpus: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class ProjectReport:
    """A project as the engine's cluster is to know it. Quantities in milli-GPUs; `limit_milli_gpus` None: none.

    `members` are (user name, role) pairs. `department` is its parent's name, "" without one.
    """

    name: str
    quota_milli_gpus: int
    limit_milli_gpus: int | None
    weight_milli: int
    priority: int = 0
    department: str = ""
    members: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DepartmentReport:
    """A parent of projects as the engine's cluster is to know it. Quota None: no bound of its own."""

    name: str
    quota_milli_gpus: int | None
    limit_milli_gpus: int | None
    weight_milli: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SecretValue:
    """Where a variable's value comes from: a key of a secret in the project's namespace."""

    secret: str
    key: str


@dataclass(frozen=True, slots=True)
class GangMember:
    """One pod of an attempt, as the launcher among them knows it: `devices` are its device indexes on `node`."""

    rank: int
    pod_name: str
    node: str
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSpec:
    """All that an engine needs to start a pod.

    `name` is the pod's identity and is never used twice (see `pod_name`). `command` and `args` mean what
    they mean in Kubernetes: the command replaces the image's, the args replace the image's args; `$(NAME)`
    in them is replaced from the pod's environment. `working_dir` None means the pod's own directory, which
    all attempts of (job_id, rank) share, so that a preempted job finds its checkpoints again.
    `launches`: the pods in which its command starts ranks, by rank and itself among them; empty for a pod that
    launches nothing. `is_host`: it runs nothing of its own, a launcher starts a rank in it.
    `kind_env`: what its kind tells programs, which `env` does not change.
    `node` "" leaves the choice to the cluster's own scheduler, among the nodes of `node_pools` in order of preference
    (all, when empty) but for `avoid_nodes`. Then the indexes of `devices` only count them, and a share says its
    milli-GPUs or its memory, with 0 for the other.
    """

    name: str
    job_id: str
    job_name: str
    project: str
    attempt: int
    rank: int
    node: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    role: str = "worker"
    world_size: int = 1
    devices: tuple[DeviceShare, ...] = ()
    working_dir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    large_shm: bool = False
    milli_cpus: int = 1000
    memory_mib: int = 1024
    grace_seconds: int = 30
    log_path: str = ""
    kind: str = "train"
    is_preemptible: bool = True
    priority: int = 50
    node_pools: tuple[str, ...] = ()
    avoid_nodes: tuple[str, ...] = ()
    launches: tuple[GangMember, ...] = ()
    is_host: bool = False
    min_pods: int = 1  # of the attempt's gang that must start together
    has_stable_names: bool = False  # the attempt's pods reach one another by name, even if there is only one
    kind_env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, SecretValue] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()
    extra_resources: Mapping[str, str] = field(default_factory=dict)  # name -> Kubernetes quantity
    mounts: tuple[tuple[str, str], ...] = ()  # (directory of the node, where the pod finds it)
    is_elastic: bool = False  # its attempt's pods may change while it runs; it is told who they are by a file


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why the cluster's own scheduler does not place a pod: `reason` is one of ours for queued jobs
    (scheduling.reasons), `message` its own words, `details` the numbers that it compared, in our units.
    """

    reason: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodReport:
    """What the engine knows of one pod.

    `exit_code` is the command's own, 128 + n after signal n, None where it is not known. `is_proven_gone` is
    True only when no process of the pod is left: the one condition under which its devices may be given out
    again. `ports` maps a declared port to the address at which the control plane reaches it, where there is one.
    `node` is where the pod is, "" before the cluster's own scheduler has placed it; `verdict` is why it has not yet.
    Pods on one node with the same `device_group` share a device. `taken_by` is whom a pod gives way to, also while it
    still runs: a job's id, or the cluster's own words for work that is not ours; reason PREEMPTED says that it does.
    """

    name: str
    state: str
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    ports: Mapping[int, Address] = field(default_factory=dict)
    is_proven_gone: bool = False
    node: str = ""
    device_group: str = ""
    verdict: Verdict | None = None
    taken_by: str = ""


@dataclass(frozen=True, slots=True)
class PodUsage:
    """One pod's use of what it was given: `utilization` 0 to 1 of its share. None: not known."""

    pod_name: str
    utilization: float | None
    memory_used_mib: int | None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """One device at one moment: `utilization` 0 to 1 of the whole device. None: it could not be read."""

    node: str
    device_index: int
    utilization: float | None
    memory_used_mib: int | None
    pods: tuple[PodUsage, ...] = ()


class Shell(Protocol):
    """An interactive terminal in a running pod. `fileno` becomes readable when there is output."""

    def fileno(self) -> int: ...

    def read(self, limit: int = 65536) -> bytes:
        """Bytes of output, waiting for some; empty when the shell has ended."""

    def write(self, data: bytes) -> int:
        """How many bytes were taken, without waiting: 0 while the terminal is full (poll `fileno` for
        room)."""

    def resize(self, columns: int, rows: int) -> None: ...

    def close(self) -> int | None:
        """End the shell and all that runs in it. Its exit code if it had ended by itself."""


STDOUT, STDERR = 1, 2
# Runs the command in its arguments, or the best shell there is. A missing program ends with 127 whatever shell that is.
RUN_SCRIPT = (
    "if [ $# -eq 0 ]; then if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi; fi;"
    ' command -v "$1" >/dev/null 2>&1 || { echo "$1: not found" >&2; exit 127; }; exec "$@"'
)


class Process(Protocol):
    """A command in a running pod, without a terminal. `fileno` becomes readable when there is output."""

    def fileno(self) -> int: ...

    def input_fileno(self) -> int:
        """Becomes writable when there is room for input."""

    def read(self, limit: int = 65536) -> tuple[int, bytes]:
        """STDOUT or STDERR and bytes of it, perhaps none, without waiting. Raises EOFError when all output has been
        read."""

    def write(self, data: bytes) -> int:
        """How many bytes were taken, without waiting. A command that reads no more takes all and drops them."""

    def close_input(self) -> None:
        """Let the command see the end of its input."""

    def close(self) -> int | None:
        """End the command and what it started in its session. Its exit code if it had ended by itself."""


class Engine(Protocol):
    """One cluster's metal. Every method may raise EngineUnreachable."""

    @property
    def capabilities(self) -> Capabilities: ...

    def nodes(self) -> tuple[NodeReport, ...]: ...

    def start(self, spec: PodSpec) -> None:
        """Start the pod, once: a repeat, also from another process, starts nothing. Raises EngineRefused."""

    def stop(self, pod_name: str, grace_seconds: int, project: str = "") -> None:
        """Ask the pod to end and kill it after the grace; does not wait. A repeat may only shorten the grace.

        Stopping a pod that was never started makes sure that it never will be; `project` says where it would.
        """

    def pods(self) -> tuple[PodReport, ...]:
        """Every pod that was started (or stopped before it could be) and is not forgotten yet, as of some seconds ago
        at most: one that another process started since may be missing."""

    def find(self, pod_name: str, project: str) -> PodReport | None:
        """One pod as it is now; None: it is certain that there is none of this name. Raises EngineRefused where that
        cannot be said."""

    def forget(self, pod_name: str) -> None:
        """Clean up after a pod whose end was recorded; its log stays. Before that:
        EngineRefused(POD_NOT_GONE)."""

    def forget_job(self, job_id: str) -> None:
        """Remove what the job's pods kept between attempts: working directories and checkpoints in them."""

    def read_logs(self, pod_name: str, offset: int, limit: int) -> LogPage:
        """Lines from a byte offset of the pod's log. Raises EngineRefused(NO_SUCH_POD)."""

    def usage(self) -> tuple[UsageReport, ...]:
        """One report per device of every node, in node and device order."""

    def open_shell(self, pod_name: str, columns: int, rows: int) -> Shell:
        """A shell in a running pod. Raises EngineRefused."""

    def run_command(self, pod_name: str, command: Sequence[str]) -> Process:
        """Run a command in a running pod, a shell that reads its input where it is empty. Raises EngineRefused."""

    def open_port(self, pod_name: str, port: int) -> socket.socket:
        """A connected stream to what listens on a running pod's port. Raises EngineRefused, OSError."""

    def copy_logs(self, paths: Mapping[str, str]) -> None:
        """Keep the logs of these pods (name -> file of the log store) up to date from now on, and no others.

        Called again and again by the one process that may write them; returns at once. An engine that
        WRITES_LOG_STORE has nothing to do.
        """

    def sync_projects(
        self, projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport] = ()
    ) -> None:
        """Make what the cluster keeps per project equal to this. Called every few seconds with all of them; what
        is as it should be costs no call. Raises EngineRefused for the first that could not be, after the rest.
        """

    def forget_project(self, project: str) -> None:
        """Remove all that the cluster keeps of a deleted project. Never touches what is not ours."""

    def close(self) -> None:
        """End the threads and connections of this object; pods go on. It is not used again."""

    def wait_for_change(self, timeout_seconds: float) -> bool:
        """Block until a pod may have changed state; False after the timeout. Missing a change is allowed."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What an elastic pod wrote beside its membership file: JSON text, "" for nothing, and the age of its last beat."""

    text: str = ""
    silent_seconds: float = 0.0


class MembershipEngine(Protocol):
    """What an engine with the capability MEMBERSHIP does beside the rest."""

    def exchange(self, pod_name: str, membership: str) -> MemberReport:
        """Give an elastic pod its membership file, replaced at once where it differs and left alone for "", and return
        what the pod wrote. An empty report of a pod that is not there."""


POD_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def pod_name(job_id: str, attempt: int, rank: int) -> str:
    """The engine's name of a pod: derived from (job, attempt, rank), so that a repeated start is harmless."""
    return f"{job_id}-{attempt}-{rank}"


def parts_of(name: str) -> tuple[str, int, int] | None:
    """The (job id, attempt, rank) from which `pod_name` made a name; None for any other name."""
    job_id, _, rest = name.rpartition("-")[0].rpartition("-")
    numbers = (rest, name.rpartition("-")[2])
    if not job_id or not all(number.isdecimal() for number in numbers):
        return None
    return job_id, int(numbers[0]), int(numbers[1])


def is_job_id(text: str) -> bool:
    """Return whether `text` is a job's id; objects of other owners in the cluster may resemble ours."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def check_pod_name(name: str) -> None:
    """Raise EngineRefused unless the name can be a file name and a Kubernetes name."""
    if not POD_NAME.fullmatch(name):
        raise EngineRefused(
            INVALID_POD, f"{name!r} is not a pod name: use small letters, digits, '-' and '.'."
        )
