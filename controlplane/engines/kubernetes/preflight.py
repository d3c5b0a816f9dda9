"""Preflight checks of a cluster: reachability, identity, permissions, and installed components.

Nothing is changed. A failed check refuses the cluster; a warning states what does not work without the missing
part. All checks together take at most SECONDS, even for an address that does not answer. A check is a table, of
which the first row that applies is the result.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias

from controlplane.clusters.settings import SettingsInvalid
from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.kubernetes import dcgm, names, rbac
from controlplane.engines.kubernetes.config import KAI, ClusterProfile, profile_from
from controlplane.engines.kubernetes.prometheus import prometheus_of
from controlplane.engines.kubernetes.rbac import Rule
from controlplane.engines.kubernetes.sanitize import count
from controlplane.engines.kubernetes.tenancy import cluster_roles
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import Access, access_from
from controlplane.kubernetes_api.errors import ApiError, ApiFailed
from controlplane.kubernetes_api.kubeconfig import hidden, secrets_of

OK, WARNING, FAILED = "ok", "warning", "failed"
SECONDS = 15.0
# Minor versions of Kubernetes: scheduling gates exist since 1.30; versions above the newest were not tested.
OLDEST, NEWEST = 30, 36

_CALL_SECONDS = 3.0
_AT_ONCE = 8
_SKEW_SECONDS = 60
# With a larger difference, certificates and tokens are refused at random.
_MOST_SKEW_SECONDS = 1800
_EXPIRES_SOON = timedelta(days=7)
# As many nodes are sufficient to find out what a cluster has.
_NODES = 500
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `outcome`: ok, warning or failed; `without_it`: what then does not work; `found`:
    names that pages offer to users, such as storage classes."""

    name: str
    outcome: str
    message: str
    without_it: str = ""
    found: tuple[str, ...] = ()


Checks: TypeAlias = Iterable[Check]
Step: TypeAlias = Callable[[Client, ClusterProfile], Checks]
# Condition, outcome, message, without_it (see Check).
Row: TypeAlias = tuple[Any, str, str] | tuple[Any, str, str, str]


def _first(name: str, *rows: Row, found: tuple[str, ...] = ()) -> list[Check]:
    """Return a list with the check `name`, made of the first row whose condition holds; [] if none does. A row:
    condition, outcome, message, and optionally `without_it`."""
    return next(([replace(Check(name, *row[1:]), found=found)] for row in rows if row[0]), [])


def check_cluster(settings: Mapping[str, Any]) -> tuple[Check, ...]:
    """Return the results of all checks of the cluster with these settings, which include its credentials. Raises
    nothing for a bad cluster or bad settings. Messages may quote responses of the server, from which parts of the
    credentials are removed."""
    credentials = settings.get("credentials") or {}
    try:
        found = check_access(access_from(credentials), profile_from(settings))
    except EngineRefused as refusal:
        found = (Check("credentials", FAILED, refusal.message),)
    except SettingsInvalid as error:
        found = (Check("settings", FAILED, str(error)),)
    # Removed here, because all messages pass this place.
    secrets = secrets_of(str(credentials.get("kubeconfig") or ""))
    return tuple(replace(check, message=hidden(check.message, secrets)) for check in found)


def check_access(access: Access, profile: ClusterProfile) -> tuple[Check, ...]:
    """Return the results of all checks; if they take longer than SECONDS, those that are known by then and a failed
    check `reachable`. They run on a thread of their own, because resolving a name may take longer than any time-out of
    ours."""
    found: list[Check] = []
    # A daemon thread, because one that blocks in the resolver cannot be ended.
    worker = threading.Thread(target=_look, args=(access, profile, found.append), daemon=True)
    worker.start()
    worker.join(SECONDS)
    # Asked before `found` is read, since the thread may add to it until it ends.
    is_late = worker.is_alive()
    words = f"{access.server} takes more than {SECONDS:g} s to answer requests."
    return (*found, *_first("reachable", (is_late, FAILED, words)))


def _look(access: Access, profile: ClusterProfile, add: Callable[[Check], None]) -> None:
    client = Client(access, retry_seconds=_CALL_SECONDS)
    for step in _STEPS:
        found = _outcome_of(step, client, profile)
        for check in found:
            add(check)
        if step in _FIRST and any(check.outcome == FAILED for check in found):
            break
    client.close()


def _outcome_of(step: Step, client: Client, profile: ClusterProfile) -> tuple[Check, ...]:
    """Return the results of one step. An error, or a response that cannot be interpreted, becomes a failed check."""
    name, server = step.__name__.strip("_"), client.access.server
    try:
        return tuple(step(client, profile))
    except (EngineUnreachable, EngineRefused) as error:
        words = str(error)
    except ApiError as error:
        if error.reason == "Unauthorized":
            name, words = "identity", f"{server} does not accept the credentials: {error.message}"
        elif error.reason:
            words = f"{server} answers {error}"
        else:
            # Without a Status object the response is not from an API server, so its text is not shown.
            words = _not_kubernetes(server, f"it answers {error.status}")
    except (KeyError, TypeError, AttributeError, ValueError):
        # Not chained or quoted, because its text may contain what was sent.
        words = _not_kubernetes(server, "its answer has another form")
    return (Check(name, FAILED, words),)


def _not_kubernetes(server: str, why: str) -> str:
    words = "It may be a web page, or Trainyard itself."
    return f"What answers at {server} is not a Kubernetes API server ({why}). {words}"


def _credentials(client: Client, profile: ClusterProfile) -> Checks:
    access = client.access
    warnings = [Check("credentials", WARNING, warning) for warning in access.warnings]
    is_ending = access.expires_at and access.expires_at < datetime.now(UTC) + _EXPIRES_SOON
    words = f"The credentials end on {access.expires_at:%Y-%m-%d at %H:%M} UTC." if access.expires_at else ""
    return warnings + _first(
        "credentials", (is_ending, WARNING, words, "The cluster cannot be reached after that.")
    )


def _reachable(client: Client, profile: ClusterProfile) -> Checks:
    version = client.get("/version", timeout_seconds=_CALL_SECONDS)
    name, minor = str(version.get("gitVersion", "")), _number(version.get("minor"))
    is_old = version.get("major") != "1" or minor < OLDEST
    unknown = _not_kubernetes(client.access.server, "it reports no version")
    return _first(
        "reachable",
        (not name.startswith("v"), FAILED, unknown),
        (is_old, FAILED, f"This is Kubernetes {name}; Trainyard needs 1.{OLDEST} or newer."),
        (minor > NEWEST, WARNING, f"This is Kubernetes {name}; Trainyard was tried up to 1.{NEWEST}."),
        (True, OK, f"Kubernetes {name} at {client.access.server}."),
    )


def _identity(client: Client, profile: ClusterProfile) -> Checks:
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    name = client.create(path, body)["status"]["userInfo"].get("username", "")
    unknown = "The cluster treats Trainyard as anonymous: it does not know the credentials."
    return _first(
        "identity",
        (name in ("", "system:anonymous"), FAILED, unknown),
        (True, OK, f"The cluster knows Trainyard as {name}."),
    )


def _clock(client: Client, profile: ClusterProfile) -> Checks:
    try:
        theirs = parsedate_to_datetime(client.server_date or "")
    except ValueError:
        # A response without a date gives no information about the clocks.
        return []
    skew = (theirs - datetime.now(UTC)).total_seconds()
    words = f"The cluster's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's."
    fatal = f"{words} Certificates and tokens fail at random: set the clocks first."
    return _first(
        "clock",
        (abs(skew) < _SKEW_SECONDS, OK, "The clocks agree."),
        (abs(skew) < _MOST_SKEW_SECONDS, WARNING, words, "Times of logs and of runs are off by as much."),
        (True, FAILED, fatal),
    )


def _rights(client: Client, profile: ClusterProfile) -> Iterator[Check]:
    optional = rbac.WITH_MPI_OPERATOR if profile.mpi_operator is None else ""
    rules = tuple(rule for rule in rbac.needed_for(profile) if rule.when != optional)
    asked = [(rule, verb) for rule in rules for verb in rule.verbs]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda each: _may(client, *each), asked))
    denied: dict[Rule, list[str]] = {}
    for (rule, verb), is_allowed in zip(asked, answers, strict=True):
        if not is_allowed:
            denied.setdefault(rule, []).append(verb)
    for rule, verbs in denied.items():
        missing = str(Rule(rule.group, rule.resource, tuple(verbs), "", names=rule.names))
        outcome = WARNING if rule.when == rbac.OPTIONAL else FAILED
        words = f"Trainyard's account may not {missing} in all namespaces."
        yield Check("rights", outcome, words, rule.without_it)
    if not denied:
        yield Check("rights", OK, "Trainyard's account has all the rights that it needs.")


def _may(client: Client, rule: Rule, verb: str) -> bool:
    resource, _, subresource = rule.resource.partition("/")
    about = {"group": rule.group, "resource": resource, "subresource": subresource, "verb": verb}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    asked = (
        {**kind, "spec": {"resourceAttributes": {**about, "name": name}}} for name in rule.names or ("",)
    )
    return all(client.create(path, body)["status"].get("allowed") for body in asked)


def _project_roles(client: Client, profile: ClusterProfile) -> Checks:
    """Check that the ClusterRoles for users of kubectl exist, or that our account may create them."""
    roles = ", ".join(body["metadata"]["name"] for body in cluster_roles())
    missing = [body for body in cluster_roles() if _found_at(client, names.path_of(body)) is None]
    refused = ", ".join(body["metadata"]["name"] for body in missing if not _may_make(client, body))
    how = "An admin creates it: kubectl apply --server-side -f deploy/rbac.yaml"
    absent = f"The ClusterRole {refused} is missing, and Trainyard may not create it. {how}"
    return _first(
        "project_roles",
        (refused, WARNING, absent, rbac.NO_KUBECTL),
        (missing, OK, f"Users of kubectl get the ClusterRoles {roles}; Trainyard creates them."),
        (True, OK, f"Users of kubectl get the ClusterRoles {roles}."),
    )


def _may_make(client: Client, body: dict[str, Any]) -> bool:
    """Return whether our account may create the object, by a dry run: it may not grant rights that it lacks."""
    try:
        client.create(names.list_path(body["kind"]), body, dry_run=True)
    except ApiError as error:
        if error.status == 403:
            return False
        raise
    return True


def _gpus(client: Client, profile: ClusterProfile) -> Checks:
    nodes = _listed(client, "/api/v1/nodes", limit=_NODES)
    if nodes is None:
        return []
    resource, total, labels = profile.gpu_resource, Counter[str](), list[Mapping[str, str]]()
    for node in nodes:
        allocatable = node["status"].get("allocatable") or {}
        gpus = {name for name in allocatable if name == resource or "gpu" in name.rpartition("/")[2]}
        total.update({name: _number(allocatable[name]) for name in gpus})
        if _number(allocatable.get(resource)):
            labels.append(node["metadata"].get("labels") or {})
    others = f" There is {', '.join(sorted(+total))}." if +total else ""
    none = f"No node of {len(nodes)} gives out {resource}: is its device plugin installed?{others}"
    there = f"{total[resource]} of {resource} on {len(labels)} of {len(nodes)} nodes."
    return _first(
        "gpus",
        (not labels, WARNING, none, "Jobs with GPUs wait until there is such a node."),
        (True, OK, there),
    ) + (_gpu_labels(labels, profile) if labels else [])


def _gpu_labels(labels: Sequence[Mapping[str, str]], profile: ClusterProfile) -> list[Check]:
    """Check the labels of the nodes that have GPUs."""
    is_known = all(names.GPU_MEMORY in each for each in labels)
    unknown = f"Some GPU nodes have no label {names.GPU_MEMORY} (GPU feature discovery)."
    shared = [each for each in labels if _number(each.get(names.GPU_REPLICAS)) > 1]
    ways = sorted({each.get(names.SHARING_STRATEGY, "time-slicing") for each in shared})
    how = "the device plugin's replicas, by time-slicing or MPS"
    return _first(
        "gpu_labels", (not is_known, WARNING, unknown, "Model and memory of their GPUs are not known.")
    ) + _first(
        "sharing",
        (profile.scheduler == KAI, OK, "KAI allocates shares of GPUs."),
        (shared, OK, f"{len(shared)} nodes share their GPUs by {', '.join(ways)}."),
        (True, WARNING, f"No node shares its GPUs ({how}).", "Jobs get whole GPUs only."),
    )


def _storage(client: Client, profile: ClusterProfile) -> Checks:
    classes = _listed(client, "/apis/storage.k8s.io/v1/storageclasses")
    if classes is None:
        return []
    notes = {each["metadata"]["name"]: each["metadata"].get("annotations") or {} for each in classes}
    default = [name for name in notes if notes[name].get(_DEFAULT_CLASS) == "true"]
    there = f"There is {', '.join(notes) or 'none'}; the default is {', '.join(default) or 'not set'}."
    chosen, caches = profile.work_storage_class, profile.cache_storage_class
    # In the order in which they are offered to users.
    offered = tuple(sorted(notes, key=lambda name: (name not in default, name)))
    none = "No storage class with ReadWriteMany is set for caches (cache_storage_class)."
    cached = f"Datasets are cached on volumes of {profile.cache_size} of the storage class {caches}."
    lost = "Working directories and checkpoints in them are lost with their pods."
    return [
        *_first(
            "storage_classes",
            (offered, OK, f"Storage classes of volumes: {', '.join(offered)}."),
            (True, WARNING, "There is no storage class.", "Volumes cannot be made."),
            found=offered,
        ),
        *_first(
            "caches",
            (not caches, WARNING, none, "Jobs mount no datasets."),
            (caches in notes, OK, cached),
            (True, FAILED, f"There is no storage class {caches} (cache_storage_class). {there}"),
        ),
        *_first(
            "storage",
            (not chosen, WARNING, f"No storage class is set (work_storage_class). {there}", lost),
            (chosen in notes, OK, f"Working directories are kept by the storage class {chosen}."),
            (True, FAILED, f"There is no storage class {chosen} (work_storage_class). {there}"),
        ),
    ]


def _snapshots(client: Client, profile: ClusterProfile) -> Checks:
    group = "/apis/snapshot.storage.k8s.io/v1"
    classes = _listed(client, f"{group}/volumesnapshotclasses")
    is_defined = classes is not None or _found_at(client, group) is not None
    known = ", ".join(each["metadata"]["name"] for each in classes or ())
    absent = "The CustomResourceDefinitions of VolumeSnapshots are not installed, nor is their controller."
    lost = "Volumes have no snapshots."
    return _first(
        "snapshots",
        (known, OK, f"Snapshot classes: {known}."),
        (not is_defined, WARNING, absent, lost),
        (True, WARNING, "There is no volume snapshot class.", lost),
    )


def _mpi_operator(client: Client, profile: ClusterProfile) -> Checks:
    """Check the MPI operator. The check `mpi_operator` is ok only if mpi jobs become MPIJobs (see Cluster.has_found);
    otherwise `mpi_launcher` states why they use our own launcher."""
    is_there, chosen = _has_kind(client, "MPIJob"), profile.mpi_operator
    rules = [rule for rule in rbac.NEEDED if rule.when == rbac.WITH_MPI_OPERATOR]
    is_allowed = is_there and all(_may(client, rule, verb) for rule in rules for verb in rule.verbs)
    own = "mpi jobs use Trainyard's own launcher."
    lost = "The MPI operator would not keep hosts' working directories"
    forbidden = "Trainyard's account may not create the MPI operator's MPIJobs"
    return _first(
        "mpi_launcher",
        (chosen is False, OK, f"mpi_operator is off: {own}"),
        (not chosen and not is_there, OK, f"No MPI operator: {own}"),
        (not chosen and profile.work_storage_class, OK, f"{lost}: {own}"),
        (not chosen and not is_allowed, OK, f"{forbidden}: {own}"),
    ) or _first(
        "mpi_operator",
        (is_there, OK, "MPIJob v2beta1 is there: mpi jobs are given to the MPI operator."),
        (True, FAILED, "mpi_operator is on, and the cluster has no MPIJob v2beta1.", "mpi jobs cannot run."),
    )


def _kai(client: Client, profile: ClusterProfile) -> Checks:
    is_there = _has_kind(client, "Queue") and _has_kind(client, "PodGroup")
    absent = "The scheduler of this cluster is kai, and KAI's Queue v2 and PodGroup v2alpha2 are not there."
    return _first(
        "kai",
        (is_there, OK, "KAI's queues and pod groups are there."),
        (profile.scheduler == KAI, FAILED, absent, "No job can be placed."),
        (True, OK, "No KAI: Trainyard's own plan decides."),
    )


def _prometheus(client: Client, profile: ClusterProfile) -> Checks:
    without = "Charts show the GPU use that jobs print themselves."
    get = prometheus_of(profile.prometheus, client)
    try:
        gpus = dcgm.read_gpus(get) if get is not None else ()
    except EngineUnreachable as error:
        return [Check("prometheus", WARNING, str(error), without)]
    empty = "Prometheus answers, but has no metrics of the DCGM exporter."
    return _first(
        "prometheus",
        (get is None, WARNING, "No Prometheus is set.", without),
        (gpus, OK, f"Prometheus has metrics of {len(gpus)} GPUs."),
        (True, WARNING, empty, without),
    )


def _found_at(client: Client, path: str, query: Mapping[str, str] = {}) -> dict[str, Any] | None:
    """Return the object or list at `path`; None if it is absent, or if we may not read it, which `_rights` reports."""
    try:
        return client.find(path, query, timeout_seconds=_CALL_SECONDS)
    except ApiError as error:
        if error.status != 403:
            raise
        return None


def _listed(client: Client, path: str, limit: int = 100) -> list[dict[str, Any]] | None:
    """Return up to `limit` objects of the list at `path`; None if it is absent or we may not read it."""
    found = _found_at(client, path, {"limit": str(limit)})
    return None if found is None else found["items"]


def _has_kind(client: Client, kind: str) -> bool:
    path, _, resource = names.list_path(kind).rpartition("/")
    try:
        found = _found_at(client, path) or {"resources": ()}
    except ApiFailed:
        # The API group is announced but not served.
        return False
    return any(each.get("name") == resource for each in found["resources"])


def _number(text: Any) -> int:
    """Return the whole number in a text such as "34+"; 0 if it is none."""
    return count(str(text or "").rstrip("+"))


# If one of these fails, the other steps would give no information.
_FIRST: tuple[Step, ...] = (_credentials, _reachable, _identity)
_STEPS: tuple[Step, ...] = (
    *_FIRST, _clock, _rights, _project_roles, _gpus, _storage, _snapshots, _mpi_operator, _kai, _prometheus,
)  # fmt: skip
