"""Fixtures that every suite shares. tests/settings.py gives the run its state directory."""

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
    """Look for cycles of garbage less often: a test run that keeps its modules is a twentieth of a core shorter."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what stands on the real node, so that it can be run apart from the rest."""
    for item in items:
        if "kube_node" in getattr(item, "fixturenames", ()):
            item.add_marker("real_node")


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Whether the test database is there already, with every migration applied."""
    return IS_MIGRATED


@pytest.fixture
def cast(db: None) -> Cast:
    """ana, ben, vera, chi and root, with team-a and team-b on one memory cluster of sixteen GPUs."""
    return make_cast()


@pytest.fixture
def own_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Storage classes of this test alone: `standard`, the default, and `fast` with tiers of its own."""
    stated = {"standard": {}, "fast": {"service_tiers": {"gold": 1024, "silver": 512}}}
    monkeypatch.setattr("django.conf.settings.STORAGE_CLASSES", storage_classes(stated, tmp_path))
    return tmp_path / "volumes"


@pytest.fixture
def own_lakes(tmp_path: Path) -> Iterator[Path]:
    """Lakes of this test alone."""
    with lakes_in(tmp_path):
        yield tmp_path / "lakes"


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server with one bucket."""
    try:
        with s3_server() as server:
            yield server
    except S3Missing as reason:
        pytest.skip(f"no S3 server: {reason}")


@pytest.fixture(scope="session")
def kube() -> Iterator[KubeCluster]:
    """API server, controllers, scheduler and KWOK, without a node: add fake ones. One for all tests, which make
    namespaces of their own in it."""
    try:
        with kube_cluster() as cluster:
            yield cluster
    except KubeMissing as reason:
        pytest.skip(f"no Kubernetes: {reason}")


@pytest.fixture(scope="session")
def kube_node() -> Iterator[KubeCluster]:
    """The same with a real node: node-a runs containers and has 8 GPUs of 32768 MiB in pool train, node-b is fake."""
    try:
        with node_cluster(has_csi=True) as cluster:
            yield cluster
    except KubeMissing as reason:
        pytest.skip(f"no Kubernetes node: {reason}")
