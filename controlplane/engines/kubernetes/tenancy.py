"""Build the objects that represent our projects: namespaces, quotas, network policies and role bindings. No I/O.

The planner decides how many GPUs a project holds. The quotas only apply the same bounds to users of `kubectl`: a
project's limit, and its quota for non-preemptible pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controlplane.engines.base import ProjectReport
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.inventory import RENAMED
from controlplane.kubernetes_api.names import FIELD_MANAGER

RBAC = "rbac.authorization.k8s.io"
POD_SECURITY = "pod-security.kubernetes.io"
# The priority values by which the kubelet selects pods to evict when a node runs out of memory.
GUARANTEED_VALUE, PREEMPTIBLE_VALUE = 1000, 0

# The cloud metadata addresses, which give a machine its identity and credentials: AWS, Azure, Google and others;
# AWS over IPv6; Alibaba.
METADATA = ("169.254.169.254/32", "fd00:ec2::254/128", "100.100.100.200/32")

READ = ("get", "list", "watch")
# What each role may do with kubectl in its project's namespace, weakest role first; each also has the rights of the
# roles before it. No role may create or change pods, which would bypass the planner. Secrets are for users who may
# run jobs. They are ClusterRoles that we `bind` by name: the API server refuses to create a role with rights that
# its author lacks, so a role per project would need an account that may read all secrets of the cluster.
RULES: dict[str, tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]] = {
    "viewer": (
        ("", ("pods", "pods/log", "pods/status", "events", "configmaps", "services", "persistentvolumeclaims",
              "resourcequotas"), READ),
    ),
    "member": (
        ("", ("pods/exec", "pods/portforward"), ("create", "get")),
        ("", ("secrets",), (*READ, "create", "update", "patch", "delete")),
    ),
    "owner": (
        (RBAC, ("rolebindings",), READ),
        ("networking.k8s.io", ("networkpolicies",), READ),
    ),
}  # fmt: skip
ROLE_NAMES = tuple(f"trainyard-{name}" for name in RULES)


def objects(
    projects: Sequence[ProjectReport], profile: ClusterProfile, parts: int = 1
) -> tuple[dict[str, Any], ...]:
    """Return all objects that represent these projects, in an order in which they can be created. `parts`: see
    `quotas`."""
    found = priority_classes(profile)
    for project in projects:
        found += [namespace(project.name, profile), *quotas(project, profile, parts)]
        found += [network_policy(project.name, profile)] if profile.network_policy else []
        found += [binding(project, name, profile) for name in RULES]
    return tuple(found)


def namespace(project: str, profile: ClusterProfile) -> dict[str, Any]:
    """Return the project's Namespace, which enforces the cluster's pod security standard."""
    labels = {
        **names.labels(profile.installation, project),
        f"{POD_SECURITY}/enforce": profile.pod_security,
        f"{POD_SECURITY}/warn": profile.pod_security,
    }
    return names.manifest("Namespace", {"name": profile.namespace_of(project), "labels": labels})


def quotas(project: ProjectReport, profile: ClusterProfile, parts: int = 1) -> list[dict[str, Any]]:
    """Return ResourceQuotas that limit the GPUs requested in the namespace: by the project's limit, and by its quota
    for guaranteed (non-preemptible) pods.

    `parts`: the most parts into which any node divides a GPU. Quotas count in the units that nodes offer, which are
    parts of shared GPUs, so a bound is never tighter than the planner's. Where the cluster's scheduler places pods
    the quotas limit nothing: waiting jobs exist as pods in the cluster, and the scheduler's queues have the bounds.
    """
    # Selected by priority class, since quotas cannot select by label.
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": [profile.priority_class(False)]}
    selector = {"scopeSelector": {"matchExpressions": [scope]}}
    bounds = {"limit": (project.limit_milli_gpus, {}), "guaranteed": (project.quota_milli_gpus, selector)}
    # Shared GPUs may appear under either resource name, and a quota limits each name separately.
    resources = [profile.gpu_resource, f"{profile.gpu_resource}{RENAMED}"][: 2 if parts > 1 else 1]
    found = []
    for name, (milli_gpus, more) in bounds.items():
        if milli_gpus is not None:
            # Rounded up to whole units, as the cluster counts.
            units = str(-(-milli_gpus * parts // 1000))
            hard = {} if profile.placement.places_pods else {f"requests.{each}": units for each in resources}
            metadata = profile.metadata(f"trainyard-{name}", project.name)
            found.append(names.manifest("ResourceQuota", metadata, spec={"hard": hard, **more}))
    return found


def network_policy(project: str, profile: ClusterProfile) -> dict[str, Any]:
    """Return the project's NetworkPolicy: pods accept connections from their own project and the control plane only.
    They may connect anywhere except, by default, to cloud metadata addresses, which hand out the node's identity."""
    control = {"kubernetes.io/metadata.name": profile.control_namespace}
    blocks = [
        {"cidr": every, "except": [address for address in METADATA if (":" in address) == (":" in every)]}
        for every in ("0.0.0.0/0", "::/0")
    ]
    # Pods are listed separately, because some network plug-ins do not match them by address.
    allowed = [{"namespaceSelector": {}}, *({"ipBlock": block} for block in blocks)]
    body = {
        "podSelector": {},
        "policyTypes": ["Ingress"] if profile.metadata_access else ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": control}}]}],
        **({} if profile.metadata_access else {"egress": [{"to": allowed}]}),
    }
    return names.manifest("NetworkPolicy", profile.metadata("trainyard", project), spec=body)


def cluster_roles() -> list[dict[str, Any]]:
    """Return the ClusterRoles for users of kubectl, shared by all projects and installations. The Helm chart and
    deploy/rbac.yaml contain the same."""
    found = []
    rules: list[dict[str, Any]] = []
    for role, more in RULES.items():
        rules = rules + [
            {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
            for group, resources, verbs in more
        ]
        metadata = {"name": f"trainyard-{role}", "labels": {names.MANAGED_BY: FIELD_MANAGER}}
        found.append(names.manifest("ClusterRole", metadata, rules=rules))
    return found


def binding(project: ProjectReport, name: str, profile: ClusterProfile) -> dict[str, Any]:
    """Return the RoleBinding of the project role `name`: for its members by user name, and for a group that a site
    may put into its tokens."""
    # Sorted, so that an unchanged project yields an equal object and causes no request.
    users = sorted(user for user, held in project.members if held == name)
    subjects = [("Group", f"trainyard:{project.name}:{name}"), *(("User", user) for user in users)]
    return names.manifest(
        "RoleBinding",
        profile.metadata(f"trainyard-{name}", project.name),
        roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": f"trainyard-{name}"},
        subjects=[{"apiGroup": RBAC, "kind": kind, "name": subject} for kind, subject in subjects],
    )


def priority_classes(profile: ClusterProfile) -> list[dict[str, Any]]:
    """Return the two PriorityClasses by which quotas distinguish preemptible and guaranteed pods. They never preempt,
    because the planner decides that."""
    values = {True: PREEMPTIBLE_VALUE, False: GUARANTEED_VALUE}
    return [
        names.manifest(
            "PriorityClass",
            {"name": profile.priority_class(is_preemptible), "labels": names.labels(profile.installation)},
            value=value,
            globalDefault=False,
            preemptionPolicy="Never",
            description=f"Pods of Trainyard that {'may' if is_preemptible else 'may not'} be preempted.",
        )
        for is_preemptible, value in values.items()
    ]
