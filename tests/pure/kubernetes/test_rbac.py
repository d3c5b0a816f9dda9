"""The engine asks for no right that it never uses, and for some only where a setting needs them."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.engines.kubernetes.config import profile_from
from controlplane.engines.kubernetes.rbac import needed_for

KAI = {"scheduler": "kai"}
INSIDE = {"prometheus": {"namespace": "monitoring", "service": "prometheus", "port": 9090}}
OUTSIDE = {"prometheus": {"url": "https://prometheus.example.org"}}


def verbs(resource: str, **settings: Any) -> set[str]:
    found = needed_for(profile_from(settings))
    return {verb for rule in found if rule.resource == resource for verb in rule.verbs}


@pytest.mark.parametrize("settings", [{}, KAI], ids=str)
@pytest.mark.parametrize("resource", ["resourcequotas", "networkpolicies"])
def test_what_projects_have_is_listed_and_never_read_one_by_one(resource: str, settings: Any) -> None:
    assert verbs(resource, **settings) == {"list", "create", "patch", "delete"}


def test_priority_classes_stay_and_are_read_one_by_one_beside_kai_only() -> None:
    assert verbs("priorityclasses") == {"list", "create", "patch"}
    assert verbs("priorityclasses", **KAI) == {"get", "list", "create", "patch"}


def test_pod_groups_go_with_their_anchors_and_are_left_as_they_were_made() -> None:
    assert verbs("podgroups") == set()
    assert verbs("podgroups", **KAI) == {"get", "list", "watch", "create"}


def test_events_are_listed_for_volumes_and_watched_for_what_kai_evicts() -> None:
    assert verbs("events") == {"list"}
    assert verbs("events", **KAI) == {"list", "watch"}


def test_services_are_reached_through_the_server_for_a_prometheus_behind_it_only() -> None:
    assert verbs("services/proxy") == verbs("services/proxy", **OUTSIDE) == set()
    assert verbs("services/proxy", **INSIDE) == {"get"}
