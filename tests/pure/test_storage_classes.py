"""Storage classes as an admin states them: folders, and systems that a driver reaches."""

from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from datasets.storage import drivers
from datasets.storage.anf_driver import AnfConfig
from datasets.storage.base import Blocked
from datasets.storage.classes import StorageClass, storage_classes
from datasets.storage.ontap_driver import OntapConfig

ONTAP = {
    "driver": "ontap",
    "mount_root": "/mnt/svm1",
    "endpoint": "https://cluster.example.org",
    "svm": "svm1",
    "aggregate": "aggr1",
}


def test_a_class_of_ontap_names_its_svm_and_where_machines_mount_it():
    more = {
        "endpoint": "https://10.0.0.5:8443/",
        "junction": "/yard/",
        "export_policy": "gpu",
        "ca_file": "/ca.pem",
    }
    found = storage_classes({"gold": {**ONTAP, **more}}, Path("/state"))["gold"]
    assert (found.directory, found.driver) == (Path("/mnt/svm1"), "ontap")
    assert found.config == OntapConfig("10.0.0.5", 8443, "svm1", "aggr1", "/yard", "gpu", "", "/ca.pem")
    assert (found.is_size_enforced, found.default_tier) == (True, "")


def test_a_class_of_a_driver_that_was_removed_is_described_and_refused():
    left = StorageClass("gold", Path("/mnt"), {}, driver="removed")
    assert (left.is_size_enforced, left.is_tier_enforced) == (False, False)
    with pytest.raises(Blocked, match="gold") as refused:
        left.open(1)
    assert refused.value.code == "class_not_configured"


def test_a_class_without_a_driver_is_a_folder():
    found = storage_classes({"standard": {}, "also": {"driver": "folder"}}, Path("/state"))
    assert [(one.driver, one.config, one.is_size_enforced) for one in found.values()] == [
        ("folder", None, False)
    ] * 2
    assert found["also"].directory == Path("/state/volumes/also")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"driver": "nfs"}, "one of folder, ontap, anf"),
        ({"mount_root": "mnt"}, "mount_root"),
        ({"endpoint": "http://cluster.example.org"}, "https://"),
        ({"endpoint": "https://admin:pw@cluster.example.org"}, "https://"),
        ({"endpoint": "https://cluster.example.org:port"}, "https://"),
        ({"endpoint": "https://cluster.example.org/api"}, "https://"),
        ({"svm": ""}, "`svm`"),
        ({"svm": "a/b"}, "`svm`"),
        ({"aggregate": 5}, "strings"),
        ({"junction": "yard"}, "junction"),
        ({"junction": "/a/../b"}, "junction"),
        ({"password": "hunter2"}, "unknown fields password"),
        ({"directory": "/x"}, "unknown fields directory"),
        ({"service_tiers": {"gold": 1}}, "unknown fields service_tiers"),
    ],
)
def test_what_a_class_of_ontap_lacks_is_named(change, words):
    with pytest.raises(ValueError, match=words) as refused:
        storage_classes({"gold": {**ONTAP, **change}}, Path("/state"))
    assert "hunter2" not in str(refused.value)


SUBNET = "/subscriptions/sub1/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/n/subnets/anf"
ANF = {
    "driver": "anf",
    "mount_root": "/mnt/anf",
    "subscription": "sub1",
    "resource_group": "group1",
    "account": "account1",
    "location": "westeurope",
    "subnet": SUBNET,
    "pools": {"premium": "pool1", "standard": "pool2"},
}


def test_the_service_tiers_of_a_class_of_azure_are_its_pools():
    found = storage_classes({"azure": ANF}, Path("/state"))["azure"]
    pools = {"premium": "pool1", "standard": "pool2"}
    assert found.config == AnfConfig("sub1", "group1", "account1", "westeurope", SUBNET, pools)
    assert (found.default_tier, found.service_tiers) == ("premium", {"premium": 64, "standard": 16})
    assert (found.is_size_enforced, found.is_tier_enforced) == (True, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pools": {}}, "`pools`"),
        ({"pools": {"gold": "pool1"}}, "standard, premium, ultra"),
        ({"pools": {"ultra": "a/b"}}, "names of capacity pools"),
        ({"pools": {"ultra": 5}}, "names of capacity pools"),
        ({"account": ""}, "`account`"),
        ({"location": 5}, "strings"),
        ({"subnet": "anf"}, "`subnet`"),
        ({"endpoint": "http://management.example.org"}, "https://"),
        ({"authority": "login.example.org"}, "https://"),
        ({"client_secret": "hunter2"}, "unknown fields client_secret"),
    ],
)
def test_what_a_class_of_azure_lacks_is_named(change, words):
    with pytest.raises(ValueError, match=words) as refused:
        storage_classes({"azure": {**ANF, **change}}, Path("/state"))
    assert "hunter2" not in str(refused.value)


@pytest.fixture
def lustre(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(drivers, "MODULES", (*drivers.MODULES, "tests.newcomer.storage_driver"))
    drivers.drivers.cache_clear()
    yield
    drivers.drivers.cache_clear()


def test_a_driver_is_one_module_and_one_line(lustre: None) -> None:
    stated = {"driver": "lustre", "mount_root": "/mnt", "pool": "flash", "description": "Scratch"}
    found = storage_classes({"fast": stated}, Path("/state"))["fast"]
    assert (found.default_tier, found.is_size_enforced, found.is_tier_enforced) == ("scratch", True, False)
    assert found.open(7).path("v1") == Path("/mnt/flash/7/volumes/v1")
    with pytest.raises(ValueError, match="needs `pool`"):
        storage_classes({"fast": {**stated, "pool": ""}}, Path("/state"))
    with pytest.raises(ValueError, match="unknown fields svm"):
        storage_classes({"fast": {**stated, "svm": "x"}}, Path("/state"))


@pytest.mark.parametrize("name", drivers.drivers())
def test_what_a_driver_opens_exists(name: str) -> None:
    assert callable(resolve_name(drivers.drivers()[name].opens))
