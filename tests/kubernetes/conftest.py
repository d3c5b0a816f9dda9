"""Clusters for the Kubernetes suites, one of each kind for all of them. Tests make namespaces of their own in them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube import KubeCluster, KubeMissing, kube_cluster, node_cluster
from tests.kubernetes.engine_case import Case


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what stands on the real node, so that it can be run apart from the rest."""
    for item in items:
        if "kube_node" in getattr(item, "fixturenames", ()):
            item.add_marker("real_node")


@pytest.fixture(scope="package")
def kube() -> Iterator[KubeCluster]:
    """API server, controllers, scheduler and KWOK, without a node: add fake ones."""
    try:
        with kube_cluster() as cluster:
            yield cluster
    except KubeMissing as reason:
        pytest.skip(f"no Kubernetes: {reason}")


@pytest.fixture(scope="package")
def kube_node() -> Iterator[KubeCluster]:
    """The same with a real node: node-a runs containers and has 8 GPUs of 32768 MiB in pool train, node-b is
    fake."""
    try:
        with node_cluster(has_csi=True) as cluster:
            yield cluster
    except KubeMissing as reason:
        pytest.skip(f"no Kubernetes node: {reason}")


@pytest.fixture(scope="module")
def node(kube: KubeCluster) -> str:
    """A fake node of eight GPUs for one module."""
    name = f"engine-{secrets.token_hex(3)}"
    kube.add_node(name, gpus=8)
    return name


@pytest.fixture
def case(kube: KubeCluster, node: str, tmp_path: Path) -> Iterator[Case]:
    case = Case(kube, node, tmp_path)
    yield case
    case.close()
