"""What a cluster keeps of projects: what the golden files do not say by themselves."""

from __future__ import annotations

from dataclasses import replace

from controlplane.engines.kubernetes import kai, names, rbac, tenancy
from controlplane.engines.kubernetes.config import KAI, ClusterProfile
from tests.pure.kubernetes.goldens import RESTRICTED, TEAM


def test_everything_is_ours_and_has_its_paths():
    objects = tenancy.objects([TEAM], RESTRICTED)
    assert [one["kind"] for one in objects][:3] == ["PriorityClass", "PriorityClass", "Namespace"]
    assert all(one["metadata"]["labels"][names.INSTALLATION] == "trainyard" for one in objects)
    quota = next(one for one in objects if one["kind"] == "ResourceQuota")
    assert names.path_of(quota) == "/api/v1/namespaces/yard-team-a/resourcequotas/trainyard-limit"
    assert names.list_path("ResourceQuota") == "/api/v1/resourcequotas"


def test_bounds_are_never_tighter_than_the_planners():
    shared = replace(TEAM, quota_milli_gpus=2500, limit_milli_gpus=3100)
    limit, guaranteed = tenancy.quotas(shared, RESTRICTED)
    assert limit["spec"]["hard"] == {"requests.nvidia.com/gpu": "4"}
    assert guaranteed["spec"]["hard"] == {"requests.nvidia.com/gpu": "3"}
    assert tenancy.quotas(shared, RESTRICTED, parts=4)[1]["spec"]["hard"] == {
        "requests.nvidia.com/gpu": "10",
        "requests.nvidia.com/gpu.shared": "10",
    }


def test_each_role_may_what_those_below_it_may_and_nobody_may_make_pods():
    rules = [role["rules"] for role in tenancy.cluster_roles()]
    assert rules[0] == rules[1][: len(rules[0])] == rules[2][: len(rules[0])]
    assert rules[1] == rules[2][: len(rules[1])]
    assert not any(
        "pods" in rule["resources"] and {"create", "update", "patch"} & {*rule["verbs"]} for rule in rules[2]
    )


def test_we_hold_nothing_that_projects_roles_grant_of_secrets():
    secrets = [rule for rule in rbac.NEEDED if rule.resource == "secrets"]
    assert [rule.verbs for rule in secrets] == [("create",)]
    bound = [rule for rule in rbac.NEEDED if "bind" in rule.verbs]
    assert [rule.names for rule in bound] == [tenancy.ROLE_NAMES]
    assert all(role["metadata"]["name"] in tenancy.ROLE_NAMES for role in tenancy.cluster_roles())


def test_under_kai_the_queues_bound_projects():
    profile = ClusterProfile(scheduler=KAI)
    # Also without projects: queues that are not wanted any more are removed.
    assert {one["kind"] for one in kai.queues([], (), profile)} == {"Queue"}
    quotas = [one for one in tenancy.objects([TEAM], profile) if one["kind"] == "ResourceQuota"]
    assert quotas
    assert not any(one["spec"]["hard"] for one in quotas)


def test_pods_reach_everything_but_the_clouds_metadata():
    policy = tenancy.network_policy("vision", ClusterProfile())["spec"]
    blocks = [peer["ipBlock"] for peer in policy["egress"][0]["to"] if "ipBlock" in peer]
    closed = [address for block in blocks for address in block["except"]]
    assert sorted(closed) == ["100.100.100.200/32", "169.254.169.254/32", "fd00:ec2::254/128"]
    assert {"namespaceSelector": {}} in policy["egress"][0]["to"]
    opened = tenancy.network_policy("vision", ClusterProfile(metadata_access=True))["spec"]
    assert (opened["policyTypes"], "egress" in opened) == (["Ingress"], False)
