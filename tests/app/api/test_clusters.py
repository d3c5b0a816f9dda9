"""Attaching clusters over REST: what is refused at once, what is looked at, and that credentials never come back."""

import io
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.apps import apps

from controlplane.actions.clusters import candidate, settle_check
from controlplane.clusters.credentials import decrypt, engine_settings
from controlplane.models import AuditEntry, Cluster, Command, Event
from jobs.models import Attempt, Pod
from tests.app.api.client import Api
from tests.builders import make_job, make_node, make_project
from tests.cast import Cast

pytestmark = pytest.mark.django_db

AsPerson = Callable[[str], Api]
SECRET = "eyJhbGciOi-hush-hush"
KUBECONFIG = f"""
apiVersion: v1
kind: Config
current-context: prod
clusters: [{{name: prod, cluster: {{server: "https://10.0.0.1:6443"}}}}]
users: [{{name: yard, user: {{token: {SECRET}}}}}]
contexts:
- {{name: prod, context: {{cluster: prod, user: yard}}}}
- {{name: other, context: {{cluster: prod, user: yard}}}}
"""
PROD = {"name": "prod", "engine": "kubernetes", "kubeconfig": KUBECONFIG}
NOW = datetime(2026, 11, 21, tzinfo=UTC)
GOOD = {"name": "who am I", "outcome": "ok", "message": "yard-admin", "without_it": ""}
BAD = {
    "name": "API server",
    "outcome": "failed",
    "message": "10.0.0.1:6443 does not answer.",
    "without_it": "nothing works",
}


def attach(root: Api, **fields: Any) -> Cluster:
    assert root.post("clusters", PROD | fields).status == 201
    return Cluster.objects.get(name="prod", detached_at=None)


def orders(cluster: Cluster) -> list[Command]:
    return list(Command.objects.filter(cluster=cluster, kind=Command.CHECK_CLUSTER, state="pending"))


def settle(cluster: Cluster, *checks: dict[str, str]) -> Cluster:
    """What the loop does with the one open order."""
    [order] = orders(cluster)
    settle_check(order, checks, NOW)
    Command.objects.filter(pk=order.pk).update(state=Command.DONE)
    cluster.refresh_from_db()
    return cluster


def test_a_new_cluster_is_checking_until_it_was_looked_at(api: AsPerson, cast: Cast):
    root = api("root")
    reply = root.post("clusters", PROD | {"scheduler": "kai", "settings": {"pool_label": "pool"}})
    assert (reply.status, reply.body["scheduler"], reply.body["settings"]) == (
        201,
        "kai",
        {"pool_label": "pool"},
    )
    assert reply.body["status"] == {
        "state": "checking",
        "is_checking": True,
        "checked_at": None,
        "checks": [],
        "is_reachable": True,
        "unreachable_message": "",
    }
    cluster = settle(Cluster.objects.get(name="prod"), GOOD)
    status = root.get("clusters/prod").body["status"]
    assert (status["state"], status["is_checking"], status["checks"]) == ("attached", False, [GOOD])
    assert engine_settings(cluster)["credentials"] == {"kubeconfig": KUBECONFIG}
    assert [event.kind for event in Event.objects.order_by("seq")][-2:] == [
        "cluster.registered",
        "cluster.attached",
    ]
    assert [row["name"] for row in root.get("clusters?state=attached").body["results"]] == ["memory", "prod"]


def test_a_refused_cluster_says_why_can_be_mended_and_removed(api: AsPerson, cast: Cast):
    root = api("root")
    cluster = settle(attach(root), BAD)
    assert root.get("clusters/prod").body["status"] | {"checked_at": None} == {
        "state": "refused",
        "is_checking": False,
        "checked_at": None,
        "checks": [BAD],
        "is_reachable": True,
        "unreachable_message": "",
    }
    assert root.patch("clusters/prod", {"context": "other"}).body["status"]["state"] == "checking"
    cluster.refresh_from_db()
    assert decrypt(cluster.credentials) == {"kubeconfig": KUBECONFIG, "context": "other"}
    settle(cluster, BAD)
    assert root.delete("clusters/prod").status == 204
    cluster.refresh_from_db()
    assert cluster.credentials == ""
    assert attach(root).pk != cluster.pk


def test_what_is_attached_stays_as_it_is_until_the_new_is_found_good(api: AsPerson, cast: Cast):
    root = api("root")
    cluster = settle(attach(root), GOOD)
    shown = root.patch("clusters/prod", {"in_cluster": True, "settings": {"work_size": "5Gi"}}).body
    assert (shown["status"]["state"], shown["status"]["is_checking"], shown["settings"]) == (
        "attached",
        True,
        {},
    )
    looked_at = engine_settings(candidate(cluster, orders(cluster)[0].payload))
    assert (looked_at["credentials"], looked_at["work_size"]) == ({"in_cluster": True}, "5Gi")
    settle(cluster, BAD)
    assert (cluster.state, cluster.settings, cluster.checks) == ("attached", {}, [BAD])
    assert decrypt(cluster.credentials) == {"kubeconfig": KUBECONFIG}
    root.patch("clusters/prod", {"in_cluster": True})
    root.patch("clusters/prod", {"settings": {"work_size": "5Gi"}})
    settle(cluster, GOOD)
    assert (cluster.settings, decrypt(cluster.credentials)) == ({"work_size": "5Gi"}, {"in_cluster": True})


def suffixed(root: Api, suffix: str) -> int:
    return root.patch("clusters/prod", {"settings": {"node_suffix": suffix}}).status


def test_a_suffix_renames_the_nodes_that_are_known_once_it_was_found_good(api: AsPerson, cast: Cast):
    root = api("root")
    cluster = settle(attach(root), GOOD)
    node = make_node(cluster, "gpu-1")
    assert suffixed(root, "prod") == 200
    settle(cluster, BAD)
    assert [each.name for each in cluster.nodes.all()] == ["gpu-1"]
    suffixed(root, "prod")
    settle(cluster, GOOD)
    assert root.get("nodes/gpu-1.prod").body["gpus"] == 8
    suffixed(root, "lab")
    settle(cluster, GOOD)
    node.refresh_from_db()
    assert node.name == "gpu-1.lab"


def test_a_suffix_that_gives_a_node_the_name_of_anothers_is_not_taken(api: AsPerson, cast: Cast):
    root = api("root")
    cluster = settle(attach(root), GOOD)
    make_node(cluster, "gpu-1")
    make_node(Cluster.objects.get(name="memory"), "gpu-1.prod")
    suffixed(root, "prod")
    settle(cluster, GOOD)
    assert (cluster.state, cluster.settings) == ("attached", {})
    assert "Another cluster has a node gpu-1.prod" in cluster.checks[-1]["message"]


@pytest.mark.parametrize(
    ("names", "trouble"),
    [
        (("gpu-1", "gpu-1.lab"), "would be called gpu-1.prod"),  # both are gpu-1 without the suffix of now
        (("gpu-1.lab", "gpu-1.prod"), "would be called gpu-1.prod"),
        ((f"{'n' * 249}", "gpu-1"), "longer than 253"),
    ],
)
def test_a_suffix_with_which_names_are_not_told_apart_or_too_long_is_not_taken(
    api: AsPerson, cast: Cast, names: tuple[str, ...], trouble: str
):
    root = api("root")
    cluster = settle(attach(root, settings={"node_suffix": "lab"}), GOOD)
    for name in names:
        make_node(cluster, name, gpus=0)
    suffixed(root, "prod")
    settle(cluster, GOOD)
    assert (cluster.state, cluster.settings) == ("attached", {"node_suffix": "lab"})
    assert trouble in cluster.checks[-1]["message"]
    assert {node.name for node in cluster.nodes.all()} == set(names)


def test_nodes_are_not_renamed_under_pods(api: AsPerson, cast: Cast):
    root = api("root")
    cluster = settle(attach(root), GOOD)
    node = make_node(cluster, "gpu-1")
    suffixed(root, "prod")  # and then a pod starts there
    job = make_job(make_project("on-prod", cluster=cluster))
    attempt = Attempt.objects.create(job=job, number=1)
    Pod.objects.create(job=job, attempt=attempt, rank=0, name=f"{job.pk}-1-0", node=node)
    settle(cluster, GOOD)
    assert cluster.settings == {}
    assert (cluster.checks[-1]["name"], cluster.checks[-1]["outcome"]) == ("nodes", "failed")
    reply = root.patch("clusters/prod", {"settings": {"node_suffix": "prod"}})
    assert (reply.status, reply.body["code"]) == (409, "nodes_in_use")
    assert "1 unfinished pods" in reply.body["detail"]
    assert root.patch("clusters/prod", {"settings": {"work_size": "5Gi"}}).status == 200


def test_an_answer_that_comes_late_does_not_settle_a_later_order(api: AsPerson, cast: Cast):
    root = api("root")
    cluster = attach(root)
    [first] = orders(cluster)
    Command.objects.filter(pk=first.pk).update(state=Command.CLAIMED)
    root.patch("clusters/prod", {"scheduler": "kai"})
    settle_check(first, [GOOD], NOW)
    cluster.refresh_from_db()
    assert (cluster.state, len(orders(cluster))) == ("checking", 1)


def test_it_can_be_checked_again(api: AsPerson, cast: Cast):
    root = api("root")
    cluster = settle(attach(root), GOOD)
    assert root.post("clusters/prod/check").body["status"]["is_checking"] is True
    assert settle(cluster, GOOD).state == "attached"
    assert root.post("clusters/memory/check").code == "nothing_to_check"
    assert root.post("clusters/moon/check").status == 404


def test_a_dry_run_checks_what_can_be_checked_and_writes_nothing(api: AsPerson, cast: Cast):
    root = api("root")
    assert root.post("clusters?dry_run=true", PROD).body["status"]["state"] == "checking"
    assert not Cluster.objects.filter(name="prod").exists()
    assert not Command.objects.exists()
    assert root.post("clusters?dry_run=true", PROD | {"kubeconfig": "{"}).status == 400


@pytest.mark.parametrize(
    ("fields", "pointer", "code"),
    [
        ({"kubeconfig": "a: ["}, "/kubeconfig", "kubeconfig_unreadable"),
        ({"kubeconfig": "[" * 5000}, "/kubeconfig", "kubeconfig_unreadable"),
        ({"kubeconfig": "just words"}, "/kubeconfig", "kubeconfig_unreadable"),
        ({"kubeconfig": "contexts: 7"}, "/kubeconfig", "kubeconfig_unreadable"),
        ({"kubeconfig": "x" * 300_000}, "/kubeconfig", "too_long"),
        ({"kubeconfig": "contexts: [3, {}]"}, "/context", "context_unknown"),
        ({"kubeconfig": ""}, "/kubeconfig", "required"),
        ({"context": "moon"}, "/context", "context_unknown"),
        ({"in_cluster": True}, "/kubeconfig", "one_of_two"),
        ({"scheduler": "volcano"}, "/scheduler", "unknown_scheduler"),
        ({"settings": {"nodes": {}}}, "/settings/nodes", "unknown_field"),
        ({"settings": {"host_network": True}}, "/settings/host_network", "needs_privileged"),
        ({"engine": "memory", "settings": {"nodes": "nvml"}}, "/kubeconfig", "not_for_this_engine"),
        ({"engine": "docker"}, "/engine", "unknown_engine"),
        ({"allow_exec": True}, "/allow_exec", "exec_not_allowed"),
        ({"password": "x"}, "/password", "unknown_field"),
    ],
)
def test_bad_input_is_refused_at_once(fields: dict[str, Any], pointer: str, code: str, api: AsPerson):
    reply = api("root").post("clusters", PROD | fields)
    assert (reply.status, reply.pointers, reply.body["errors"][0]["code"]) == (400, [pointer], code)
    assert SECRET not in str(reply.body)


def test_without_an_engine_it_is_the_kind_with_these_credentials(api: AsPerson):
    root = api("root")
    made = root.post("clusters", {name: value for name, value in PROD.items() if name != "engine"})
    assert (made.status, made.body["engine"]) == (201, "kubernetes")
    refused = root.post("clusters", {"name": "moon"})
    assert (refused.status, refused.pointers, refused.body["errors"][0]["code"]) == (
        400,
        ["/engine"],
        "required",
    )


def test_a_name_in_use_is_a_conflict_and_others_may_not_even_try(api: AsPerson, cast: Cast):
    attach(api("root"))
    assert (api("root").post("clusters", PROD).code, api("ana").post("clusters", PROD).status) == (
        "name_taken",
        403,
    )
    shown = api("ben").get("clusters/prod").body
    assert (shown["settings"], shown["status"]["checks"], shown["status"]["state"]) == (None, [], "checking")


def test_credentials_are_found_nowhere(api: AsPerson, cast: Cast):
    """Every answer, every column of every table but the sealed one, and every line of the log."""
    root, log = api("root"), io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.DEBUG)
    try:
        answers = [
            root.post("clusters", PROD, Idempotency_Key="once"),
            root.post("clusters", PROD, Idempotency_Key="once"),
            root.post("clusters", PROD),
            root.patch("clusters/prod", {"kubeconfig": KUBECONFIG, "context": "other"}),
            root.get("clusters/prod"),
            root.get("clusters"),
            root.get("events"),
            root.get("audit"),
            root.delete("clusters/prod"),
        ]
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(logging.WARNING)
    assert AuditEntry.objects.filter(verb="cluster.edit").count() == 1
    rows = [str(list(model._base_manager.values())) for model in apps.get_models()]
    assert [reply.status for reply in answers] == [201, 201, 409, 200, 200, 200, 200, 200, 204]
    assert not [text for text in (*map(str, answers), *rows, log.getvalue()) if SECRET in text]
