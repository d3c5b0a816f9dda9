"""Clusters for the Kubernetes suites, one of each kind for the whole run. Tests make namespaces of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kube import KubeCluster, KubeMissing, kube_cluster


@pytest.fixture(scope="session")
def kube() -> Iterator[KubeCluster]:
    """API server, controllers, scheduler and KWOK, without a node: add fake ones."""
    try:
        with kube_cluster() as cluster:
            yield cluster
    except KubeMissing as reason:
        pytest.skip(f"no Kubernetes: {reason}")
