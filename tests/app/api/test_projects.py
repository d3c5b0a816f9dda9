"""Projects, members, clusters and nodes over REST."""

from collections.abc import Callable

import pytest
from django.utils import timezone

from controlplane.loop.execute import clusters_with_work
from controlplane.models import AuditEntry, Cluster, Command, Device, Event, Node, Project
from jobs.command_kinds import STOP_POD
from jobs.models import Job, Pod
from tests.app.api.client import Api
from tests.app.api.placing import place
from tests.builders import make_cluster, make_job
from tests.cast import Cast

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]


def test_a_project_is_created_read_edited_and_deleted(api: AsPerson):
    root = api("root")
    body = {
        "name": "team-c",
        "description": "third",
        "gpu_quota": 2.5,
        "over_quota_weight": 0,
        "gpu_limit": 4,
        "priority": 3,
        "node_pools": {"train": ["default"]},
        "interactive_max_seconds": 3600,
        "members": [{"user": "ben", "role": "owner"}],
    }
    made = root.post("projects", body)
    assert made.status == 201
    shown = root.get("projects/team-c").body
    assert shown == {name: value for name, value in made.body.items() if name != "warnings"}
    assert shown | body | {"node_pools": {"train": ["default"], "interactive": []}} == shown
    assert (shown["cluster"], shown["department"], shown["status"]["namespace"]) == (
        "memory",
        None,
        "yard-team-c",
    )
    edited = root.patch("projects/team-c", {"over_quota_weight": None, "gpu_limit": None, "gpu_quota": 3})
    assert (edited.body["over_quota_weight"], edited.body["gpu_limit"], edited.body["gpu_quota"]) == (
        None,
        None,
        3,
    )
    assert edited.body["description"] == "third"
    assert root.post("projects", {"name": "team-c"}).code == "name_taken"
    assert root.delete("projects/team-c").status == 200
    assert root.get("projects/team-c").status == 404


def test_a_quota_above_the_cluster_is_allowed_with_a_warning(api: AsPerson):
    made = api("root").post("projects", {"name": "team-c", "gpu_quota": 17})
    assert made.status == 201
    assert "16" in made.body["warnings"][0]
    assert api("root").patch("projects/team-c", {"gpu_quota": 16}).body["warnings"] == []


def test_the_status_counts_what_is_held_and_waited_for(api: AsPerson, cast: Cast):
    place(make_job(cast.project, "a", cast.ben, gpus=0.5), milli=500)
    for number in range(5):
        place(make_job(cast.project, f"b{number}", cast.ben))
    make_job(cast.project, "c", cast.ben, gpus=2, workers=2)
    make_job(cast.project, "d", cast.ben, gpus=None, gpu_memory_mib=8192)
    assert api("ben").get("projects/team-a").body["status"] == {
        "allocated_gpus": 5.5,
        "in_quota_gpus": 4,
        "over_quota_gpus": 1.5,
        "fair_share_gpus": 0,
        "requested_gpus": 9.75,
        "running_jobs": 6,
        "queued_jobs": 2,
        "namespace": "yard-team-a",
        "recent_usage": None,
    }


def test_strangers_see_only_their_own_projects(api: AsPerson):
    assert [row["name"] for row in api("chi").get("projects").body["results"]] == ["team-b"]
    assert api("chi").get("projects/team-a").body == api("chi").get("projects/none").body | {
        "detail": api("chi").get("projects/team-a").body["detail"]
    }
    assert [row["name"] for row in api("root").get("projects").body["results"]] == ["team-a", "team-b"]


def test_deleting_is_refused_while_jobs_are_unfinished_and_says_what_goes(api: AsPerson, job: Job):
    root = api("root")
    refused = root.delete("projects/team-a")
    assert (refused.status, refused.code) == (409, "project_in_use")
    listed = {"project": "team-a", "cluster": "memory", "namespace": None, "working_directories": 0}
    listed |= {"is_reachable": True, "unfinished_jobs": 1, "finished_jobs": 0, "members": 3}
    assert root.delete("projects/team-a?dry_run=true").body == listed
    root.post(f"jobs/{job.pk}/stop")
    assert root.delete("projects/team-a").body == listed | {"unfinished_jobs": 0, "finished_jobs": 1}
    assert not Job.objects.exists()


def test_a_project_moves_to_another_cluster_while_it_has_no_jobs(api: AsPerson, cast: Cast, job: Job):
    root, second = api("root"), make_cluster("second", nodes=0)
    refused = root.patch("projects/team-a", {"cluster": "second"})
    assert (refused.status, refused.code) == (409, "project_in_use")
    Job.objects.update(state="succeeded")
    refused = root.patch("projects/team-a", {"cluster": "second"})
    assert (refused.status, refused.code) == (409, "project_has_history")
    assert "1 finished jobs of team-a belong to nodes of memory" in refused.body["detail"]
    job.delete()
    assert api("ana").patch("projects/team-a", {"cluster": "second"}).status == 403
    assert root.patch("projects/team-a", {"cluster": "nowhere"}).status == 400
    root.patch("projects/team-a", {"node_pools": {"train": ["default"]}})
    second.pools.update(name="other")
    moved = root.patch("projects/team-a", {"cluster": "second"})
    assert moved.body["errors"][0]["pointer"] == "/node_pools/train/0"
    moved = root.patch("projects/team-a", {"cluster": "second", "node_pools": {"train": ["other"]}})
    assert (moved.status, moved.body["cluster"]) == (200, "second")
    order = Command.objects.get(kind="forget_project")
    assert (order.cluster.name, order.subject_id) == ("memory", "team-a")
    entry = AuditEntry.objects.filter(verb="project.edit").latest("pk")
    assert (entry.before["cluster"], entry.after["cluster"]) == ("memory", "second")


def test_members_come_change_and_go(api: AsPerson):
    ana = api("ana")
    assert ana.post("projects/team-a/members", {"user": "chi", "role": "viewer"}).status == 201
    assert api("chi").get("projects/team-a").status == 200
    again = ana.post("projects/team-a/members", {"user": "chi", "role": "member"})
    assert (again.status, again.body) == (200, {"user": "chi", "role": "member"})
    assert ana.patch("projects/team-a/members/chi", {"role": "viewer"}).body["role"] == "viewer"
    listed = ana.get("projects/team-a/members?role=viewer").body["results"]
    assert listed == [{"user": "chi", "role": "viewer"}, {"user": "vera", "role": "viewer"}]
    assert ana.delete("projects/team-a/members/chi").status == 204
    assert ana.delete("projects/team-a/members/chi").status == 404
    assert api("chi").get("projects/team-a").status == 404
    assert ana.post("projects/team-a/members", {"user": "nobody", "role": "viewer"}).pointers == ["/user"]


def test_a_project_keeps_an_owner_and_can_be_handed_over(api: AsPerson):
    ana = api("ana")
    assert ana.delete("projects/team-a/members/ana").code == "last_owner"
    assert ana.patch("projects/team-a/members/ana", {"role": "viewer"}).code == "last_owner"
    handed = ana.patch("projects/team-a", {"members": [{"user": "ben", "role": "owner"}]})
    assert handed.body["members"] == [{"user": "ben", "role": "owner"}]
    assert ana.get("projects/team-a").status == 404


def test_a_change_that_is_half_refused_changes_nothing(api: AsPerson):
    ana = api("ana")
    reply = ana.patch(
        "projects/team-a", {"description": "new", "members": [{"user": "nobody", "role": "owner"}]}
    )
    assert reply.status == 400
    assert Project.objects.get(name="team-a").description == ""
    assert len(ana.get("projects/team-a").body["members"]) == 3


def test_a_node_shows_its_devices_and_hides_what_is_not_ours(api: AsPerson, cast: Cast):
    place(make_job(cast.project, "ours", cast.ben, gpus=0.5), milli=500)
    place(make_job(cast.other, "theirs", cast.chi, gpus=0.25), milli=250)
    node = api("ben").get("nodes/dgx1-1").body
    assert (node["gpus"], node["allocated_gpus"], node["devices"][0]["allocated"]) == (8, 0.75, 0.75)
    ours, theirs = node["pods"]
    assert (ours["name"], ours["project"], ours["devices"]) == (
        "ours-1-0",
        "team-a",
        [{"index": 0, "share": 0.5}],
    )
    assert theirs == {
        "project": "team-b",
        "state": "running",
        "devices": [{"index": 0, "share": 0.25}],
        "job": None,
        "name": None,
        "user": None,
    }
    assert [pod["name"] for pod in api("root").get("nodes/dgx1-1").body["pods"]] == ["ours-1-0", "theirs-1-0"]


def test_nodes_are_cordoned_drained_and_pooled(api: AsPerson, cast: Cast):
    root = api("root")
    moving = make_job(cast.project, "train", cast.ben)
    staying = make_job(cast.project, "notebook", cast.ben, kind="interactive")
    place(moving)
    place(staying)
    shown = root.post("nodes/dgx1-1/drain?dry_run=true").body
    assert ([job["name"] for job in shown["moves"]], [job["name"] for job in shown["stays"]]) == (
        ["train"],
        ["notebook"],
    )
    assert not Node.objects.get(name="dgx1-1").is_cordoned
    assert root.post("nodes/dgx1-1/drain").body == shown
    moving.refresh_from_db()
    staying.refresh_from_db()
    assert (moving.state, moving.next_state, staying.state) == ("stopping", "queued", "running")
    assert root.get("nodes?is_cordoned=true&fields=name").body["results"] == [{"name": "dgx1-1"}]
    assert root.post("nodes/dgx1-1/uncordon").body["is_cordoned"] is False
    pool = {"name": "dgx", "cluster": "memory", "is_spot": False, "nodes": []}
    assert root.post("node-pools", {"name": "dgx"}).body == pool
    assert root.patch("nodes/dgx1-1", {"node_pool": "dgx"}).body["node_pool"] == "dgx"
    assert root.patch("nodes/dgx1-1", {"node_pool": "moon"}).code == "no_such_node_pool"
    assert root.get("nodes?node_pool=dgx&fields=name").body["results"] == [{"name": "dgx1-1"}]


def test_a_node_pool_is_deleted_when_nothing_is_in_it_and_no_project_names_it(api: AsPerson, cast: Cast):
    root = api("root")
    root.post("node-pools", {"name": "dgx"})
    root.patch("nodes/dgx1-1", {"node_pool": "dgx"})
    assert api("ana").delete("node-pools/dgx").status == 403
    refused = root.delete("node-pools/dgx")
    assert (refused.status, refused.code) == (409, "node_pool_in_use")
    assert "dgx1-1" in refused.body["detail"]
    root.patch("nodes/dgx1-1", {"node_pool": None})
    root.patch("projects/team-a", {"node_pools": {"train": ["dgx"]}})
    assert "team-a" in root.delete("node-pools/dgx").body["detail"]
    root.patch("projects/team-a", {"node_pools": {}})
    assert root.delete("node-pools/dgx?cluster=moon").status == 404
    assert root.delete("node-pools/dgx?cluster=memory&dry_run=true").status == 200
    assert root.delete("node-pools/dgx?cluster=memory").status == 204
    assert root.delete("node-pools/dgx").status == 404
    assert root.get("audit").body["results"][0]["verb"] == "node_pool.delete"


def test_a_pool_is_marked_as_spot_and_a_notice_is_given_and_withdrawn(api: AsPerson, cast: Cast):
    root = api("root")
    assert root.get("nodes/dgx1-1").body["is_spot"] is False
    [pool] = root.get("node-pools").body["results"]
    assert root.patch(f"node-pools/{pool['name']}", {"is_spot": True}).body["is_spot"] is True
    assert root.get("nodes/dgx1-1").body["is_spot"] is True
    assert root.patch("node-pools/moon", {"is_spot": True}).status == 404
    assert root.post("node-pools", {"name": "burst", "is_spot": True}).body["is_spot"] is True
    place(make_job(cast.project, "train", cast.ben))
    tried = root.post("nodes/dgx1-1/interruption-notice?dry_run=true", {"in_seconds": 120}).body
    assert [job["name"] for job in tried["moves"]] == ["train"]
    assert root.get("nodes/dgx1-1").body["interruption_at"] is None
    assert root.post("nodes/dgx1-1/interruption-notice", {"in_seconds": 120}).body == tried
    shown = root.get("nodes/dgx1-1").body
    assert (shown["is_cordoned"], shown["interruption_at"] is not None) == (True, True)
    assert root.post("nodes/dgx1-1/interruption-notice", {"in_seconds": 0}).pointers == ["/in_seconds"]
    withdrawn = root.post("nodes/dgx1-1/uncordon").body
    assert (withdrawn["is_cordoned"], withdrawn["interruption_at"]) == (False, None)
    Node.objects.filter(name="dgx1-1").update(interruption_at=timezone.now())
    assert root.post("nodes/dgx1-1/uncordon").code == "notice_of_cluster"


def test_clusters_are_registered_edited_and_detached(api: AsPerson, cast: Cast):
    root = api("root")
    nodes = {"nodes": {"m1": {"devices": 2, "memory_mib": 1024}}}
    made = root.post("clusters", {"name": "moon", "engine": "memory", "settings": nodes})
    assert (made.status, made.body["engine"], made.body["scheduler"]) == (201, "memory", "planner")
    assert root.post("clusters", {"name": "moon", "engine": "memory", "settings": nodes}).code == "name_taken"
    assert root.post("clusters", {"name": "k", "engine": "memory"}).pointers == ["/settings"]
    more = {"nodes": {"m1": {"devices": 4, "memory_mib": 1024, "pool": "big"}}}
    assert root.patch("clusters/moon", {"settings": more}).status == 200
    assert root.patch("clusters/moon", {"scheduler": "kai"}).pointers == ["/scheduler"]
    bad = root.patch("clusters/moon", {"settings": {"nodes": {"m1": {"devices": 99, "memory_mib": 1}}}})
    assert bad.pointers == ["/settings/nodes/m1"]
    assert root.delete("clusters/moon").status == 204
    assert root.get("clusters/moon").status == 404
    assert root.delete("clusters/memory").code == "cluster_in_use"


def test_a_dead_node_is_confirmed_and_gives_back_what_its_pods_held(api: AsPerson, cast: Cast):
    root, node = api("root"), Node.objects.get(name="dgx1-1")
    job = make_job(cast.project, "train", cast.ben)
    [pod] = place(job)
    order = Command.objects.create(
        kind=STOP_POD, cluster=node.cluster, subject_kind="pod", subject_id=pod.name
    )
    assert root.post("nodes/dgx1-1/confirm-dead").code == "node_ready"
    Node.objects.filter(pk=node.pk).update(is_ready=False, message="Kubelet stopped posting node status.")
    assert root.get("nodes/dgx1-1").body["message"] == "Kubelet stopped posting node status."
    shown = root.post("nodes/dgx1-1/confirm-dead?dry_run=true").body
    assert ([moved["name"] for moved in shown["moves"]], shown["stays"]) == (["train"], [])
    assert Pod.objects.get().released_at is None
    assert root.post("nodes/dgx1-1/confirm-dead").body == shown
    pod, order = Pod.objects.get(), Command.objects.get(pk=order.pk)
    assert (pod.state, pod.reason, pod.released_at is None, order.state) == (
        "failed",
        "node_lost",
        False,
        "done",
    )
    assert not Device.objects.filter(allocated_milli__gt=0).exists()
    assert root.get("nodes/dgx1-1").body["is_cordoned"] is True
    assert AuditEntry.objects.filter(verb="node.confirm_dead", actor="root").exists()
    kinds = [event.kind for event in Event.objects.filter(node_id=node.pk).order_by("seq")]
    assert kinds == ["pod.released", "node.cordoned", "node.confirmed_dead"]


def test_a_device_that_others_hold_says_so(api: AsPerson, cast: Cast):
    Device.objects.filter(node__name="dgx1-1", index=7).update(is_foreign=True)
    devices = api("ben").get("nodes/dgx1-1").body["devices"]
    assert [device["is_foreign"] for device in devices] == [False] * 7 + [True]


def test_deleting_a_project_takes_its_namespace_along(api: AsPerson, cast: Cast):
    root, cluster = api("root"), make_cluster("prod", "kubernetes", nodes=0)
    cluster.settings = {"namespace_prefix": "ml-"}
    cluster.save()
    made = root.post("projects", {"name": "team-k", "cluster": "prod"})
    assert made.body["status"]["namespace"] == "ml-team-k"
    kept = root.patch("clusters/prod", {"settings": {"namespace_prefix": "other-"}})
    assert kept.code == "cluster_in_use"
    taken = root.delete("projects/team-k?dry_run=true").body
    assert taken == {
        "project": "team-k",
        "cluster": "prod",
        "is_reachable": True,
        "namespace": "ml-team-k",
        "working_directories": 0,
        "unfinished_jobs": 0,
        "finished_jobs": 0,
        "members": 0,
    }
    assert not Command.objects.exists()
    Cluster.objects.update(is_reachable=False)
    assert root.delete("projects/team-k?dry_run=true").body == taken | {"is_reachable": False}
    Cluster.objects.update(is_reachable=True)
    assert root.delete("projects/team-k").body == taken
    [order] = Command.objects.all()
    assert (order.kind, order.cluster, order.subject_id) == ("forget_project", cluster, "team-k")
    assert root.post("projects", {"name": "team-k", "cluster": "prod"}).code == "project_cleaning_up"
    assert root.delete("clusters/prod").code == "cluster_cleaning_up"
    Command.objects.update(state="done")
    assert root.post("projects", {"name": "team-k", "cluster": "prod"}).status == 201


def test_a_cluster_that_is_away_takes_its_open_orders_along(api: AsPerson, cast: Cast):
    root, cluster = api("root"), make_cluster("prod", "kubernetes", nodes=0)
    orders = [("stop_pod", "pending"), ("forget_pod", "claimed"), ("forget_project", "pending")]
    Command.objects.bulk_create(
        Command(cluster=cluster, kind=kind, state=state, subject_id="x") for kind, state in orders
    )
    cluster.is_reachable = False
    cluster.save()
    assert root.delete("clusters/prod").status < 300
    assert set(Command.objects.values_list("state", flat=True)) == {"cancelled"}
    assert cluster.pk not in clusters_with_work()
