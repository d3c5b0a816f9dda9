"""Fixtures of all suites. tests/settings.py sets the state directory of the run."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from datasets.storage.classes import storage_classes
from tests import emptied
from tests.cast import Cast, make_cast
from tests.kube import KubeCluster, KubeMissing, kube_cluster, node_cluster
from tests.s3_server import S3Missing, S3Server, s3_server
from tests.settings import IS_MIGRATED
from tests.worlds import lakes_in

# A loaded machine must not fail a property: no deadline, and no verdict on how fast examples are made.
settings.register_profile(
    "house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")
emptied.install()


def pytest_collection_finish() -> None:
    """Make garbage collections rare, which saves 5 % of CPU: a test run keeps its modules to its end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the real Kubernetes node with `real_node`, so that they can be run separately."""
    for item in items:
        if "kube_node" in getattr(item, "fixturenames", ()):
            item.add_marker("real_node")


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Fixture: whether the test database exists already, with all migrations applied."""
    return IS_MIGRATED


@pytest.fixture
def cast(db: None) -> Cast:
    """Fixture: the users ana, ben, vera, chi and root, with the projects team-a and team-b, on one memory cluster
    of sixteen GPUs."""
    return make_cast()


@pytest.fixture
def own_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fixture: storage classes of this test alone, `standard` (the default) and `fast`, which has tiers. Returns
    the directory of the volumes."""
    stated = {"standard": {}, "fast": {"service_tiers": {"gold": 1024, "silver": 512}}}
    monkeypatch.setattr("django.conf.settings.STORAGE_CLASSES", storage_classes(stated, tmp_path))
    return tmp_path / "volumes"


@pytest.fixture
def own_lakes(tmp_path: Path) -> Iterator[Path]:
    """Fixture: lakes and caches of this test alone. Yields the directory of the lakes."""
    with lakes_in(tmp_path):
        yield tmp_path / "lakes"


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Fixture: a real S3 server with one bucket, shared by all tests. Skips the test if there is none."""
    try:
        with s3_server() as server:
            yield server
    except S3Missing as reason:
        pytest.skip(f"no S3 server: {reason}")


@pytest.fixture(scope="session")
def kube() -> Iterator[KubeCluster]:
    """Fixture: a Kubernetes cluster without a node (API server, controllers, scheduler and KWOK), shared by all
    tests: add fake nodes and namespaces of your own. Skips the test if there can be none."""
    try:
        with kube_cluster() as cluster:
            yield cluster
    except KubeMissing as reason:
        pytest.skip(f"no Kubernetes: {reason}")


@pytest.fixture(scope="session")
def kube_node() -> Iterator[KubeCluster]:
    """Fixture: a Kubernetes cluster with two nodes: node-a is real and has 8 GPUs of 32768 MiB in the pool train,
    node-b is fake. Skips the test if there can be none."""
    try:
        with node_cluster(has_csi=True) as cluster:
            yield cluster
    except KubeMissing as reason:
        pytest.skip(f"no Kubernetes node: {reason}")
