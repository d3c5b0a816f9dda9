"""Settings that cannot work: each with its id and a hint; good ones pass."""

from importlib import metadata
from pathlib import Path

import pytest
from django.test import override_settings

from controlplane.checks import check_settings
from controlplane.config.service_hosts import ServicesHost
from datasets.checks import check_storage_packages
from datasets.storage.classes import StorageClass


def findings() -> dict[str, str]:
    """Message and hint by id; what this machine's install lacks is left out."""
    found = check_settings(None)
    return {str(one.id): f"{one.msg} {one.hint}" for one in found if one.id != "trainyard.W002"}


@pytest.mark.parametrize(
    ("setting", "value", "finding", "hint"),
    [
        ("BOOTSTRAP_TOKEN", "x" * 31, "trainyard.E001", "token_urlsafe"),
        ("CLUSTERS", "local:dgx1=eight", "trainyard.E002", "dgx1-1=8x32768"),
        ("CLUSTERS", "slurm:a=1x1", "trainyard.E002", "dgx1-1=8x32768"),
        ("HOST", "0.0.0.0", "trainyard.E003", "TRAINYARD_ALLOW_REMOTE=yes"),
        ("HOST", "192.0.2.7", "trainyard.E003", "TRAINYARD_PUBLIC_URL=https"),
        ("PUBLIC_URL", "yard.example.org", "trainyard.E004", "without a path"),
        ("PUBLIC_URL", "https://yard.example.org/yard", "trainyard.E004", "without a path"),
        (
            "SERVICES",
            ServicesHost("http", "jobs.lan", ":8000"),
            "trainyard.W003",
            "TRAINYARD_PUBLIC_URL=https",
        ),
        ("REDIS_URL", "http://localhost", "trainyard.E005", "built-in"),
        ("METRICS_TOKEN", "x" * 31, "trainyard.E008", "token_urlsafe"),
        (
            "CLUSTER_PRESETS",
            {"kubernetes": {"settings": {"work_siz": "5Gi"}}},
            "trainyard.E007",
            "work_storage_class",
        ),
        ("CLUSTER_PRESETS", {"kubernetes": {"settings": []}}, "trainyard.E007", "work_storage_class"),
        ("CLUSTER_PRESETS", {"kubernetes": {"sheduler": "kai"}}, "trainyard.E007", "work_storage_class"),
        ("SECRET_KEY", "x" * 31, "trainyard.E006", "token_urlsafe"),
    ],
)
def test_an_impossible_setting_has_an_id_and_a_hint(
    setting: str, value: object, finding: str, hint: str
) -> None:
    with override_settings(**{setting: value}):
        found = findings()
    assert list(found) == [finding]
    assert hint in found[finding]


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"BOOTSTRAP_TOKEN": "x" * 32},
        {"HOST": "localhost"},
        {"HOST": "::1"},
        {"HOST": "0.0.0.0", "ALLOW_REMOTE": True},
        {"HOST": "0.0.0.0", "PUBLIC_URL": "https://yard.example.org"},
        {"CLUSTERS": "local:a=2x100"},
        {
            "CLUSTERS": "kubernetes:in-cluster",
            "CLUSTER_PRESETS": {"kubernetes": {"settings": {"work_size": "5Gi"}}},
        },
        {"METRICS_TOKEN": "x" * 32},
        {"REDIS_URL": "rediss://user:secret@redis.example:6380/1"},
    ],
)
def test_a_good_setting_passes(good: dict[str, object]) -> None:
    with override_settings(**good):
        assert findings() == {}


def test_a_misspelled_variable_gets_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_PROT", "8001")
    assert "Did you mean TRAINYARD_PORT?" in findings()["trainyard.W001"]


@pytest.mark.parametrize(("is_installed", "expected"), [(True, []), (False, ["trainyard.W004"])])
def test_a_storage_class_whose_package_is_not_installed_is_named(monkeypatch, is_installed, expected):
    classes = {
        "a": StorageClass("a", Path("/a"), {}),
        "gold": StorageClass("gold", Path("/g"), {}, driver="ontap"),
    }
    monkeypatch.setattr(metadata, "distributions", lambda name: iter([name] * is_installed))
    with override_settings(STORAGE_CLASSES=classes):
        found = check_storage_packages(None)
    assert [one.id for one in found] == expected
    assert all("gold" in one.msg and "pip install netapp-ontap" in str(one.hint) for one in found)
