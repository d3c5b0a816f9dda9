"""Fixtures: an engine on the cluster of the fixture `kube` (tests/conftest.py), with fake nodes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube import KubeCluster
from tests.kubernetes.engine_case import Case


@pytest.fixture(scope="module")
def node(kube: KubeCluster) -> str:
    """Fixture: the name of a fake node with eight GPUs, for one module."""
    name = f"engine-{secrets.token_hex(3)}"
    kube.add_node(name, gpus=8)
    return name


@pytest.fixture
def case(kube: KubeCluster, node: str, tmp_path: Path) -> Iterator[Case]:
    case = Case(kube, node, tmp_path)
    yield case
    case.close()
