"""What is done before the servers start."""

import pytest
from django.test import override_settings

from controlplane.models import Cluster, Command
from controlplane.supervisor.prepare import _register_clusters
from tests.builders import make_cluster, make_project

SETTINGS = {
    "CLUSTERS": "kubernetes:in-cluster",
    "CLUSTER_PRESETS": {"kubernetes": {"settings": {"namespace_prefix": "other-"}}},
}


@pytest.fixture
def cluster(db: None) -> Cluster:
    return make_cluster("kubernetes", "kubernetes", nodes=0)


@override_settings(**SETTINGS)
def test_changed_settings_of_a_cluster_are_ordered(cluster: Cluster) -> None:
    _register_clusters()
    assert Command.objects.get().payload == {"settings": {"namespace_prefix": "other-"}}


@override_settings(**SETTINGS)
def test_settings_that_are_refused_are_said_and_keep_nothing_from_starting(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    make_project("team-k", cluster=cluster)
    _register_clusters()
    told = capsys.readouterr().err
    assert "TRAINYARD_KUBERNETES" in told
    assert "leave namespace_prefix as it is" in told
    cluster.refresh_from_db()
    assert (cluster.settings, Command.objects.count()) == ({"nodes": {}}, 0)
