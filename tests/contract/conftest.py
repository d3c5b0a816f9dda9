"""The cluster of the engine that needs one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kube import KubeCluster, KubeMissing, node_cluster


@pytest.fixture(scope="package")
def kube_node() -> Iterator[KubeCluster]:
    """A real node (node-a) and a fake one (node-b), as tests/contract/harness.py has them in its settings."""
    try:
        with node_cluster() as cluster:
            yield cluster
    except KubeMissing as reason:
        pytest.skip(f"no Kubernetes node: {reason}")
