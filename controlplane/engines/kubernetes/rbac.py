"""List every verb on every resource that the engine uses in a cluster. No I/O.

The cluster check asks for exactly these rights, and the chart's roles are tested against them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.engines.kubernetes.config import KAI, ClusterProfile
from controlplane.engines.kubernetes.tenancy import RBAC, ROLE_NAMES

# When a rule is needed: always, with a setting, or only for one optional feature.
ALWAYS, WITH_KAI, WITH_MPI_OPERATOR, OPTIONAL = "always", "kai", "mpi_operator", "optional"


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on one resource ("pods", "pods/log") in all namespaces. `without_it`: what does not work without the
    right; `when`: in which clusters it is needed; `names`: the objects that it covers, () for all."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    without_it: str
    when: str = ALWAYS
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = f"{', '.join(self.verbs)} {self.resource}{'.' + self.group if self.group else ''}"
        return f"{words} {', '.join(self.names)}".rstrip()


_SNAPSHOTS = "snapshot.storage.k8s.io"
_JOBS, _TENANCY = "No job can run.", "Projects cannot be set up."
_NO_OPERATOR = "mpi jobs cannot be given to the MPI operator."
NO_KUBECTL = "Jobs run; users of kubectl get no rights in their projects."
_KEPT = ("get", "list", "create", "patch", "delete")
_CLAIMS, _TAKEN = ("get", "list", "create", "delete"), ("get", "watch", "create", "delete")
_GROUPED = ("get", "list", "watch", "create")
# For kinds whose objects are only listed and compared, never read one by one.
_LISTED = ("list", "create", "patch", "delete")

NEEDED: tuple[Rule, ...] = (
    Rule("", "namespaces", _KEPT, _TENANCY),
    Rule("", "pods", ("get", "list", "watch", "create", "patch", "delete"), _JOBS),
    Rule("", "nodes", ("get", "list", "watch"), "Nodes and their GPUs are not seen."),
    Rule("", "configmaps", _KEPT, _JOBS),
    Rule("", "services", ("get", "create"), "Jobs of several pods cannot run."),
    Rule("", "secrets", ("create",), "mpi jobs cannot run."),
    Rule("", "persistentvolumeclaims", _CLAIMS, "Working directories are not kept."),
    Rule("", "persistentvolumeclaims", ("watch", "patch"), "Volumes are not made or resized.", OPTIONAL),
    Rule("", "pods/log", ("get",), "Logs are not kept."),
    # Websockets are opened by GET; newer servers require `create` as well.
    # With the Helm chart only web pods need these two rights, and have an account for them. They are in this list
    # all the same, because the cluster check by the worker requires all rights of a kubeconfig, which serves both.
    Rule("", "pods/exec", ("get", "create"), "There is no terminal in pods.", OPTIONAL),
    Rule("", "pods/portforward", ("get", "create"), "Notebooks and other ports cannot be opened.", OPTIONAL),
    Rule("", "resourcequotas", _LISTED, _TENANCY),
    Rule("networking.k8s.io", "networkpolicies", _LISTED, _TENANCY),
    Rule(RBAC, "rolebindings", ("list", "create", "patch"), NO_KUBECTL, OPTIONAL),
    Rule(RBAC, "clusterroles", ("get", "bind"), NO_KUBECTL, OPTIONAL, ROLE_NAMES),
    Rule("scheduling.k8s.io", "priorityclasses", ("list", "create", "patch"), _TENANCY),
    Rule("storage.k8s.io", "storageclasses", ("list",), "Storage classes are not checked.", OPTIONAL),
    Rule(_SNAPSHOTS, "volumesnapshotclasses", ("list",), "Snapshots are not offered.", OPTIONAL),
    Rule(_SNAPSHOTS, "volumesnapshots", _TAKEN, "Snapshots cannot be taken.", OPTIONAL),
    Rule("", "events", ("list",), "Why a volume is not made is not shown.", OPTIONAL),
    Rule("kubeflow.org", "mpijobs", ("get", "create"), _NO_OPERATOR, WITH_MPI_OPERATOR),
    Rule("scheduling.run.ai", "queues", _KEPT, "Projects get no queues in KAI.", WITH_KAI),
    # A priority class per job priority, created before the job's pods.
    Rule("scheduling.k8s.io", "priorityclasses", ("get",), "Jobs of KAI have no priorities.", WITH_KAI),
    Rule("scheduling.run.ai", "podgroups", _GROUPED, "KAI cannot be given gangs.", WITH_KAI),
    # Only these events name the job for which KAI evicted a pod; without them, evicted pods appear as deleted by a
    # user.
    Rule("", "events", ("list", "watch"), "The job for which KAI preempts others is not shown.", WITH_KAI),
)

# Needed only if the setting `prometheus` names a service. It opens every service of the cluster; the chart's
# template has it under the same condition.
BEHIND_SERVER = Rule(
    "", "services/proxy", ("get",), "Prometheus is not reached through the API server.", OPTIONAL
)

# The rights of a web process, which opens terminals and ports and does nothing else in a cluster.
OF_WEB: tuple[Rule, ...] = (
    Rule("", "pods", ("list",), "Pods are not found."),
    *(rule for rule in NEEDED if rule.resource in ("pods/exec", "pods/portforward")),
)


def needed_for(profile: ClusterProfile) -> Iterator[Rule]:
    """Yield the rules that a cluster with these settings needs."""
    settings = {
        ALWAYS: True,
        OPTIONAL: True,
        WITH_KAI: profile.scheduler == KAI,
        WITH_MPI_OPERATOR: profile.mpi_operator is not False,
    }
    yield from (rule for rule in NEEDED if settings[rule.when])
    if profile.prometheus is not None and "service" in profile.prometheus:
        yield BEHIND_SERVER
