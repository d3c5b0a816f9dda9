"""The interface of an engine, and the plain data that it takes and returns.

An engine runs pods on nodes and imports no quotas, models or Django. Every engine passes the contract suite
in tests/contract. All calls are safe to repeat. Nothing is stored only in the memory of a process: another
process that opens the same engine reports the same pods.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from controlplane.logstore.reader import LogPage
from controlplane.remote_errors import Refused, Unreachable

STARTING = "starting"
RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"
FINAL_STATES = frozenset({SUCCEEDED, FAILED})

# Reason codes of a pod's state. The control plane shows `message` together with them.
COMPLETED = "completed"
EXIT_CODE = "exit_code"  # ended with an exit code other than 0
KILLED = "killed"  # ended by a signal that we did not send
STOPPED = "stopped"  # ended because stop() was called
OUT_OF_MEMORY = "out_of_memory"
COMMAND_NOT_FOUND = "command_not_found"
COMMAND_NOT_EXECUTABLE = "command_not_executable"
WORKING_DIR_MISSING = "working_dir_missing"
SHIM_LOST = "shim_lost"  # the pod's supervisor was killed; the exit code is unknown
NODE_LOST = "node_lost"  # the node is gone, or was restarted
UNSCHEDULABLE = "unschedulable"  # the cluster cannot place it on its node
EVICTED = "evicted"  # by the cluster: disk or memory pressure, a node drain, a taint
POD_DELETED = "pod_deleted"  # deleted in the cluster, but not by us
POD_LOST = "pod_lost"  # it was started, and the engine is certain that it does not exist
PREEMPTED = "preempted"  # by the cluster's own scheduler, for another job
IMAGE_PULL_FAILED = "image_pull_failed"
CONTAINER_NOT_CREATED = "container_not_created"  # a missing secret, a volume that cannot be mounted
NOT_MOUNTED = "not_mounted"  # a volume or dataset is not there: its disk is not mounted
PULLING_IMAGE = "pulling_image"  # while starting
POD_UNREADABLE = "pod_unreadable"  # the pod may run, but its object cannot be interpreted
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
CODE_MISSING = "code_missing"  # the job's code tree is not, or no longer, in the code store
CODE_NOT_PLACED = "code_not_placed"  # another file is in the place of a file of the job's code
CODE_NOT_FETCHED = "code_not_fetched"  # the pod could not download the job's code from the control plane
DEFINITION_MISSING = "definition_missing"  # the cluster does not define this kind of object
CANNOT_SHARE = "cannot_share"  # this node assigns whole GPUs only
CREDENTIALS_REFUSED = "credentials_refused"  # the cluster does not accept Trainyard's credentials
CLUSTER_FAILED = "cluster_failed"  # it answers, but fails repeatedly at this request

# Ends without fault of the job: it is queued again without using a retry. Nodes and devices can vanish between the
# decision and the start; operators correct quotas, credentials and webhooks.
DISRUPTIONS = frozenset(
    {
        NODE_LOST, POD_LOST, UNSCHEDULABLE, EVICTED, POD_DELETED, PREEMPTED, NO_SUCH_NODE, NO_SUCH_DEVICE,
        QUOTA_REFUSED, CREDENTIALS_REFUSED, CLUSTER_FAILED, DEFINITION_MISSING,
        NOT_MOUNTED,
    }
)  # fmt: skip

SHELL = "shell"
USAGE = "usage"
FRACTIONS = "fractions"
WRITES_LOG_STORE = "writes_log_store"  # pods' output is in PodSpec.log_path without a collector
REACHES_PORTS = "reaches_ports"  # open_port works
MEMBERSHIP = "membership"  # a MembershipEngine: elastic jobs are resized while they run
HAS_CATALOGUE = "has_catalogue"  # images are names of the image catalogue; elsewhere a registry has them

Capabilities: TypeAlias = frozenset[str]
Address: TypeAlias = tuple[str, int]


# Every remote system fails in one of these two ways; the clients that engines use raise them too.
EngineUnreachable = Unreachable
EngineRefused = Refused


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One GPU of a node. `is_foreign`: a pod outside Trainyard holds it."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What an engine reports of one node. `pool`: its node pool's name; `labels`: those in its cluster; `message`:
    why it is not ready or closed.

    `device_parts`: in how many equal parts each device can be allocated, 1 for whole devices only; a share is rounded
    up to parts. `is_one_part_per_pod`: a pod gets at most one part of a device. `extras`: allocatable extended
    resources by the cluster's names, minus what pods outside Trainyard hold. `is_closed`: healthy, but cordoned or
    tainted in its cluster. `interruption_seconds`: how long after its notice the provider takes the node away, None
    without a notice.
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
    interruption_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A pod's share of one device. `milli_gpus`: 1,000 is the whole device; `memory_mib`: the pod's memory on it."""

    index: int
    milli_gpus: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class ProjectReport:
    """A project as `sync_projects` sends it to a cluster. `limit_milli_gpus` None: unlimited. `members`: (user name,
    role) pairs. `department`: its name, "" for a project without one."""

    name: str
    quota_milli_gpus: int
    limit_milli_gpus: int | None
    weight_milli: int
    priority: int = 0
    department: str = ""
    members: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DepartmentReport:
    """A department as `sync_projects` sends it to a cluster. Quota or limit None: unlimited."""

    name: str
    quota_milli_gpus: int | None
    limit_milli_gpus: int | None
    weight_milli: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SecretValue:
    """The source of an environment variable: one key of a Kubernetes secret in the project's namespace."""

    secret: str
    key: str


@dataclass(frozen=True, slots=True)
class CodeSource:
    """The code for a pod's working directory. `tree`: the hash of the code tree; `project_id`: whose code store has
    it. `url` and `token`: for pods that cannot read that store, "" elsewhere."""

    tree: str
    project_id: int
    url: str = ""
    token: str = ""


class Mount(NamedTuple):
    """A directory mounted into a pod at `path`. `source`: a directory of the node, "" with `claim`: the name of a
    claim, of which `sub_path` is mounted. `is_stored`: Trainyard made the directory, a volume or a dataset, so that
    only its disk can be missing. Serialised to JSON as a list."""

    source: str
    path: str
    is_read_only: bool = False
    claim: str = ""
    sub_path: str = ""
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class GangMember:
    """One pod of an attempt, as the launcher pod needs it. `devices`: the indexes of its devices on `node`."""

    rank: int
    pod_name: str
    node: str
    devices: tuple[int, ...] = ()


# In the metadata of a PodSpec field: engines other than Kubernetes refuse a pod that sets it.
KUBERNETES_ONLY = "kubernetes_only"


@dataclass(frozen=True, slots=True)
class PodSpec:
    """What an engine needs to start a pod.

    `name` is the pod's identity and is never reused (see `pod_name`). `command` and `args` are Kubernetes': the
    command replaces the image's, the args replace the image's args; `$(NAME)` is replaced from the pod's environment.
    `working_dir` None means the pod's own directory, shared by all attempts of (job_id, rank), so that a preempted
    job finds its checkpoints. `launches`: the pods in which this pod's command starts ranks, by rank and including
    itself; empty for most pods. `is_host`: runs no command of its own; a launcher starts a rank in it. `kind_env`:
    variables of the job's kind, which `env` cannot override. `node` "" leaves the choice to the cluster's own
    scheduler, among the nodes of `node_pools` in order of preference (all, if empty) except `avoid_nodes`. Then
    `devices` gives only their number, and a share gives its milli-GPUs or its memory, with 0 for the other.
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
    min_pods: int = 1  # pods of the gang that must start together
    has_stable_names: bool = False  # the attempt's pods reach one another by name, even if there is only one
    kind_env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, SecretValue] = field(default_factory=dict, metadata={KUBERNETES_ONLY: True})
    image_pull_secrets: tuple[str, ...] = field(default=(), metadata={KUBERNETES_ONLY: True})
    # Resource name -> Kubernetes quantity.
    extra_resources: Mapping[str, str] = field(default_factory=dict, metadata={KUBERNETES_ONLY: True})
    mounts: tuple[Mount, ...] = ()
    has_equal_mounts: bool = True  # all pods of the attempt have these mounts
    is_elastic: bool = False  # the attempt's pods may change while it runs; a file lists them
    code: CodeSource | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why the cluster's own scheduler does not place a pod. `reason`: a code of scheduling.reasons; `message`: the
    scheduler's text; `details`: the numbers that it compared, in milli-GPUs and pods."""

    reason: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodReport:
    """What an engine reports of one pod.

    `exit_code`: the command's, 128 + n after signal n, None if unknown. `is_proven_gone`: no process of the pod is
    left, the only condition under which its devices may be reused. `ports`: declared port -> address reachable from
    the control plane, if any. `node`: "" before the cluster's own scheduler has placed the pod; `verdict`: why it has
    not yet. Pods on one node with the same `device_group` share a device. `taken_by`: the preemptor, a job's id or a
    description of other work, set while the pod may still run; reason PREEMPTED confirms the preemption.
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
    """One pod's usage of one device. `utilization`: 0 to 1 of the pod's share; None if unknown."""

    pod_name: str
    utilization: float | None
    memory_used_mib: int | None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """One device's usage at one moment. `utilization`: 0 to 1 of the whole device. None: could not be read. `pods`:
    usage by the pods on it, if the engine can separate them."""

    node: str
    device_index: int
    utilization: float | None
    memory_used_mib: int | None
    pods: tuple[PodUsage, ...] = ()


class Shell(Protocol):
    """An interactive terminal in a running pod. `fileno` becomes readable when there is output."""

    def fileno(self) -> int: ...

    def read(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of output. Blocks until there is some; b"" when the shell has ended."""

    def write(self, data: bytes) -> int:
        """Write input without blocking, and return how many bytes were accepted; 0 while the terminal is full (poll
        `fileno`)."""

    def resize(self, columns: int, rows: int) -> None: ...

    def close(self) -> int | None:
        """End the shell and all its processes. Return its exit code if it had ended by itself, else None."""


STDOUT, STDERR = 1, 2
# Runs the command in its arguments, or the best available shell. Every shell exits with 127 for a missing program.
RUN_SCRIPT = (
    "if [ $# -eq 0 ]; then if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi; fi;"
    ' command -v "$1" >/dev/null 2>&1 || { echo "$1: not found" >&2; exit 127; }; exec "$@"'
)


class Process(Protocol):
    """A command in a running pod, without a terminal. `fileno` becomes readable when there is output."""

    def fileno(self) -> int: ...

    def input_fileno(self) -> int:
        """Return a file descriptor that becomes writable when there is room for input."""

    def read(self, limit: int = 65536) -> tuple[int, bytes]:
        """Return (STDOUT or STDERR, up to `limit` bytes of it) without blocking; the bytes may be empty. Raise
        EOFError at the end of all output."""

    def write(self, data: bytes) -> int:
        """Write input without blocking, and return how many bytes were accepted. Once the command has closed its
        input, all are accepted and discarded."""

    def close_input(self) -> None:
        """Close the command's input, so that it reads the end of file."""

    def close(self) -> int | None:
        """End the command and its session. Return its exit code if it had ended by itself, else None."""


class Engine(Protocol):
    """The interface to one cluster. Every method may raise EngineUnreachable and is safe to repeat."""

    @property
    def capabilities(self) -> Capabilities: ...

    def nodes(self) -> tuple[NodeReport, ...]: ...

    def start(self, spec: PodSpec) -> None:
        """Start the pod unless it was started or stopped before, by any process. Raise EngineRefused if it cannot be
        started."""

    def stop(self, pod_name: str, grace_seconds: int, project: str = "") -> None:
        """Send the stop signal, and kill the pod after `grace_seconds`. Returns at once; a repeat can only shorten
        the grace. Stopping a pod that was never started prevents its start for good; that needs `project`, the pod's
        project."""

    def pods(self) -> tuple[PodReport, ...]:
        """Return all pods that were started, or stopped before their start, and are not forgotten. May be some
        seconds old, so a pod that another process has just started may be missing."""

    def find(self, pod_name: str, project: str) -> PodReport | None:
        """Return the present report of one pod; None if there is certainly no such pod. Raise EngineRefused if that
        cannot be determined."""

    def forget(self, pod_name: str) -> None:
        """Remove what is left of a pod whose end was recorded, except its log. Raise EngineRefused(POD_NOT_GONE)
        before its end."""

    def forget_job(self, job_id: str) -> None:
        """Remove the working directories and checkpoints of a job. Its pods must be forgotten."""

    def read_logs(self, pod_name: str, offset: int, limit: int) -> LogPage:
        """Return up to `limit` log lines from byte `offset`. Raise EngineRefused(NO_SUCH_POD) for an unknown pod."""

    def usage(self) -> tuple[UsageReport, ...]:
        """Return one report per device, in the order of nodes and devices."""

    def open_shell(self, pod_name: str, columns: int, rows: int) -> Shell:
        """Open a shell in a running pod, on a terminal of `columns` by `rows` characters. Raise EngineRefused if the
        pod does not run or has no shell."""

    def run_command(self, pod_name: str, command: Sequence[str]) -> Process:
        """Run a command in a running pod; an empty one runs a shell. Raise EngineRefused if the pod does not run or
        the command cannot be run."""

    def open_port(self, pod_name: str, port: int) -> socket.socket:
        """Return a stream socket that is connected to a port of a running pod. Raise EngineRefused if the pod does
        not run or cannot be reached, OSError if no process listens on the port."""

    def copy_logs(self, paths: Mapping[str, str]) -> None:
        """Keep the log files of exactly these pods up to date from now on. `paths`: pod name -> file of the log
        store. Returns at once; only one process may call it, repeatedly. No effect if the engine WRITES_LOG_STORE."""

    def sync_projects(
        self, projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport] = ()
    ) -> None:
        """Create, update and remove the cluster's objects so that they match these projects and departments. Called
        every few seconds with all of them; unchanged ones cost no request. Raise EngineRefused for the first refused
        one, after processing the others."""

    def forget_project(self, project: str) -> None:
        """Remove the cluster's objects of a deleted project. Objects of other owners are never touched."""

    def close(self) -> None:
        """End this object's threads and connections. Pods keep running. Call no method afterwards."""

    def wait_for_change(self, timeout_seconds: float) -> bool:
        """Block until a pod may have changed its state, and return True; False after `timeout_seconds`. May miss
        changes."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """An elastic pod's answer to its membership file. `text`: JSON, "" if it has written none; `silent_seconds`:
    since its last heartbeat."""

    text: str = ""
    silent_seconds: float = 0.0


class MembershipEngine(Protocol):
    """What engines with the capability MEMBERSHIP offer in addition to Engine."""

    def exchange(self, pod_name: str, membership: str) -> MemberReport:
        """Write `membership`, JSON text, to an elastic pod's membership file if it differs; "" leaves the file
        unchanged. Return the pod's answer, which is empty for an absent pod."""


POD_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def pod_name(job_id: str, attempt: int, rank: int) -> str:
    """Return an engine's name for a pod. It is derived from job, attempt and rank, so that a repeated start has no
    effect."""
    return f"{job_id}-{attempt}-{rank}"


def parts_of(name: str) -> tuple[str, int, int] | None:
    """Return the (job id, attempt, rank) of a name made by `pod_name`; None for any other name."""
    job_id, _, rest = name.rpartition("-")[0].rpartition("-")
    numbers = (rest, name.rpartition("-")[2])
    if not job_id or not all(number.isdecimal() for number in numbers):
        return None
    return job_id, int(numbers[0]), int(numbers[1])


def is_job_id(text: str) -> bool:
    """Return whether `text` is a UUID in its normal form, as job ids are; other owners' objects may resemble ours."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def check_pod_name(name: str) -> None:
    """Raise EngineRefused(INVALID_POD) unless the name is valid as a file name and as a Kubernetes name."""
    if not POD_NAME.fullmatch(name):
        words = f"{name!r} is not a pod name: use small letters, digits, '-' and '.'."
        raise EngineRefused(INVALID_POD, words)
