"""A kind of engine that is one module and one line is attached, shown, and refused where it must be."""

from collections.abc import Callable, Iterator

import pytest
from django.test import Client

from controlplane.actions.cluster_input import settings_for
from controlplane.actions.errors import Invalid
from controlplane.clusters.credentials import decrypt
from controlplane.engines import kinds
from controlplane.engines.registry import parse_clusters
from controlplane.models import Cluster, User
from tests.cast import Cast

Visit = Callable[[User | None], Client]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kinds, "MODULES", (*kinds.MODULES, "tests.newcomer.engine_kind"))
    kinds.engine_kinds.cache_clear()
    kinds.is_delegated.cache_clear()
    yield
    monkeypatch.undo()
    kinds.engine_kinds.cache_clear()
    kinds.is_delegated.cache_clear()


def test_its_form_is_drawn_from_its_description_and_attaches_it(
    slurm: None, cast: Cast, visit: Visit
) -> None:
    client = visit(cast.root)
    shown = client.get("/new/cluster?engine=slurm").content.decode()
    for text in ("JSON web token", "Slurm itself", "partition", "The controller answers.", "With a token"):
        assert text in shown
    assert "kubeconfig" not in shown
    assert "?engine=slurm" in client.get("/new/cluster").content.decode()
    form = {"name": "hpc", "token": "abc", "scheduler": "slurmctld", "settings": "partition=gpu"}
    assert client.post("/new/cluster?engine=slurm", form).status_code == 302
    cluster = Cluster.objects.get(name="hpc")
    assert (cluster.engine, cluster.settings, cluster.scheduler) == (
        "slurm",
        {"partition": "gpu"},
        "slurmctld",
    )
    assert decrypt(cluster.credentials) == {"token": "abc"}
    assert cluster.state == Cluster.CHECKING
    assert "Check again" in client.get("/clusters/hpc").content.decode()


def test_what_it_does_not_know_is_refused_with_a_pointer(slurm: None) -> None:
    with pytest.raises(Invalid) as refusal:
        settings_for("slurm", {"partitions": "gpu"})
    assert [error.pointer for error in refusal.value.errors] == ["/settings/partitions"]


def test_its_scheduler_and_its_entry_of_the_environment_are_known(slurm: None) -> None:
    assert kinds.is_delegated("slurmctld")
    (declared,) = parse_clusters("slurm:gpu")
    assert (declared.engine, declared.settings) == ("slurm", {"partition": "gpu"})


def test_without_its_line_it_does_not_exist() -> None:
    with pytest.raises(Invalid, match="kubernetes"):
        settings_for("slurm", {})
