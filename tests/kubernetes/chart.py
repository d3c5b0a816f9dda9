"""The Helm chart for tests, rendered by the real helm."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from controlplane.engines.kubernetes.config import PLANNER
from tests.kube import KubeCluster
from tests.servers import CHECKOUT
from tests.waiting import patience
from tools.kube import build

CHART = CHECKOUT / "deploy" / "chart"
VALUES = sorted(CHECKOUT.glob("deploy/values-*.yaml"))
NAMESPACE, RELEASE = "trainyard", "yard"
NAME = f"{RELEASE}-trainyard"
ADDRESS = "publicUrl=https://yard.example.org"
# helm was built without the flags that tell it the version of its client library
KUBE_VERSION = "1.34.4"

Raw = dict[str, Any]
_kubeconfigs: dict[tuple[str, str, tuple[str, str] | None, str], str] = {}  # of the clusters of this run


class ChartRefused(Exception):
    """helm failed; the message is its error output."""


def helm(*arguments: str) -> str:
    """Run helm and return its standard output. Raises ChartRefused if it fails."""
    command = [str(build.ready()["helm"]), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=patience(120), check=False)
    if result.returncode != 0:
        raise ChartRefused(result.stderr)
    return result.stdout


def render(*files: Path, sets: Sequence[str] = (ADDRESS,), namespace: str = NAMESPACE) -> list[Raw]:
    """Return the objects of the chart with these values, including hooks. `files`: of values; `sets`: single
    values, as `--set` takes them."""
    words = ["template", RELEASE, str(CHART), "--namespace", namespace, "--kube-version", KUBE_VERSION]
    text = helm(*words, *_values(files, sets))
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def of_kind(objects: Sequence[Raw], kind: str) -> list[Raw]:
    return [one for one in objects if one["kind"] == kind]


def pods_of(objects: Sequence[Raw]) -> dict[str, Raw]:
    """Return the pod templates of the Deployments and Jobs among the objects, by name of the object."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]
        for one in objects
        if one["kind"] in {"Deployment", "Job"}
    }


def _values(files: Sequence[Path], sets: Sequence[str]) -> list[str]:
    return [*(f"--values={file}" for file in files), *(f"--set={one}" for one in sets)]


def engine_kubeconfig(
    kube: KubeCluster, without: tuple[str, str] | None = None, *, scheduler: str = PLANNER
) -> str:
    """Return a kubeconfig, as text, with exactly the rights that the chart gives to the control plane. `without`:
    a (verb, resource) to remove; `scheduler`: the chart's value."""
    key = (kube.url, kube.token, without, scheduler)
    if key not in _kubeconfigs:
        _kubeconfigs[key] = _apply_rights(kube, without, scheduler)
    return _kubeconfigs[key]


def _apply_rights(kube: KubeCluster, without: tuple[str, str] | None, scheduler: str) -> str:
    suffix = "-".join(without).replace("/", "-") if without else "all"
    namespace = f"chart-rights-{scheduler}-{suffix}"
    sets = (ADDRESS, "cluster.settings.mpi_operator=true", f"cluster.scheduler={scheduler}")
    objects = render(sets=sets, namespace=namespace)
    (role, *roles) = of_kind(objects, "ClusterRole")
    if without is not None:
        rules = [_less(rule, *without) for rule in role["rules"]]
        # The API server refuses a rule without verbs.
        role["rules"] = [rule for rule in rules if rule["verbs"]]
    account = next(one for one in objects if one["kind"] == "ServiceAccount")
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    kube.apply(yaml.safe_dump_all([home, account, role, *roles, *of_kind(objects, "ClusterRoleBinding")]))
    return kube.kubeconfig_for(kube.service_account_token(namespace, account["metadata"]["name"]))


def _less(rule: Raw, verb: str, resource: str) -> Raw:
    """Return the rule without the verb if it is about the resource. A rule of the chart has one resource."""
    if rule["resources"] != [resource]:
        return rule
    return {**rule, "verbs": [one for one in rule["verbs"] if one != verb]}
