"""A cluster's settings: what is read, what is refused, and the profile that comes out."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from controlplane.clusters.settings import SettingsInvalid
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.config import DEFAULT_POOL, POOL_LABELS, ClusterProfile, profile_from
from controlplane.engines.kubernetes.settings import KNOBS, parse_settings


def test_no_settings_give_the_defaults_of_both_places():
    assert profile_from({}) == ClusterProfile()
    assert {field.name for field in fields(ClusterProfile)} == {
        *KNOBS,
        "installation",
        "scheduler",
        "has_mpi_operator",
    }


def test_who_we_are_and_the_credentials_stand_beside_the_knobs():
    profile = profile_from({"credentials": {"kubeconfig": "..."}, "installation": "lab", "scheduler": "kai"})
    assert (profile.installation, profile.scheduler) == ("lab", "kai")
    assert profile.priority_class(True) == "lab-preemptible"


def test_a_pod_is_ours_by_its_label_where_we_would_have_put_it():
    def pod(namespace: str, **labels: str) -> dict[str, Any]:
        return {"metadata": {"namespace": namespace, "labels": labels or None}}

    profile = ClusterProfile(installation="0c0ffee0", namespace_prefix="lab-")
    ours = {names.INSTALLATION: "0c0ffee0", names.PROJECT: "team"}
    assert profile.is_our_pod(pod("lab-team", **ours))
    assert not profile.is_our_pod(pod("lab-other", **ours))
    assert not profile.is_our_pod(pod("lab-team", **{**ours, names.INSTALLATION: "trainyard"}))
    assert not profile.is_our_pod(pod("lab-team"))


def test_settings_read_again_from_json_are_the_same():
    body = {
        "tolerations": [{"key": "team", "value": "ml"}],
        "spot_pools": ["*"],
        "prometheus": {"namespace": "monitoring", "service": "prometheus", "port": 9090},
        "run_as_user": None,
    }
    settings = parse_settings(body)
    assert settings["tolerations"] == ({"key": "team", "value": "ml", "operator": "Equal"},)
    assert parse_settings(json.loads(json.dumps(settings))) == settings


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({"gpus": 1}, "/gpus", "unknown_field"),
        ({"gpu_resource": "a b"}, "/gpu_resource", "bad_name"),
        ({"extra_resources": ["a b"]}, "/extra_resources/0", "bad_name"),
        ({"extra_resources": [""]}, "/extra_resources/0", "bad_name"),
        ({"namespace_prefix": "Yard-"}, "/namespace_prefix", "bad_name"),
        ({"namespace_prefix": ""}, "/namespace_prefix", "bad_name"),
        ({"tolerations": [{"operator": "Exists"}]}, "/tolerations/0", "bad_toleration"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "/tolerations/0/value", "bad_toleration"),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, "/tolerations/0", "unknown_choice"),
        ({"images": {"a": "b c"}}, "/images/a", "bad_name"),
        ({"work_size": "20 Gi"}, "/work_size", "bad_name"),
        ({"work_size": 20}, "/work_size", "bad_name"),
        ({"pod_labels": {"trainyard.io/job": "x"}}, "/pod_labels/trainyard.io~1job", "reserved_name"),
        ({"pod_security": "open"}, "/pod_security", "unknown_choice"),
        ({"host_network": True}, "/host_network", "needs_privileged"),
        ({"host_paths": {"/a": "/b"}}, "/host_paths", "needs_privileged"),
        ({"host_paths": {"/a/../b": "/b"}, "pod_security": "privileged"}, "/host_paths/~1a~1..~1b", "bad_path"),
        ({"host_paths": {"/work": "/b"}, "pod_security": "privileged"}, "/host_paths/~1work", "bad_path"),
        ({"prometheus": {"url": "ftp://a"}}, "/prometheus", "bad_url"),
        ({"prometheus": {"url": "http://user:secret@a"}}, "/prometheus", "bad_url"),
        ({"prometheus": {"service": "a"}}, "/prometheus", "bad_prometheus"),
        ({"run_as_user": 0}, "/run_as_user", "out_of_range"),
        ({"env": {"A B": "x"}}, "/env/A B", "bad_name"),
        ({"network_policy": "yes"}, "/network_policy", "not_a_boolean"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused_where_it_stands(body: dict[str, Any], pointer: str, code: str):
    with pytest.raises(SettingsInvalid) as refusal:
        parse_settings(body)
    assert [(error.pointer, error.code) for error in refusal.value.errors] == [(pointer, code)]


def test_all_errors_are_told_at_once():
    with pytest.raises(SettingsInvalid) as refusal:
        parse_settings({"gpus": 1, "work_size": "", "shm_mib": -1})
    assert [error.pointer for error in refusal.value.errors] == ["/gpus", "/work_size", "/shm_mib"]


def test_a_pool_is_found_by_any_label_that_names_pools():
    terms = ClusterProfile().pool_terms(("dgx", DEFAULT_POOL))
    assert [term[0]["key"] for term in terms[:-1]] == list(POOL_LABELS)
    assert {expression["operator"] for expression in terms[-1]} == {"DoesNotExist"}
    named = [{"key": "team", "operator": "In", "values": ["dgx"]}]
    assert ClusterProfile(pool_label="team").pool_terms(("dgx",)) == [named]
