"""What each cluster is told of its projects, and what becomes of a refusal."""

import pytest

from controlplane.engines.base import DepartmentReport, ProjectReport
from controlplane.engines.memory import MemoryEngine
from controlplane.loop import runner
from controlplane.loop.claims import claim
from controlplane.loop.project_sync import LEASE, sync_projects_once, sync_requested
from controlplane.loop.runner import Runner
from controlplane.models import Cluster, Department, Event, Lease, Membership
from tests.builders import make_cluster, make_job, make_project, make_user
from tests.engines import give_engine

REFUSAL = ("namespace_not_ours", "Namespace yard-team-a exists and is not ours.")


def checks(plant) -> list[dict[str, str]]:
    return list(Cluster.objects.get(pk=plant.cluster.pk).checks)


def test_a_cluster_is_told_its_own_projects_with_departments_and_members(plant):
    department = Department.objects.create(name="research", gpu_quota_milli=8000)
    project = make_project(quota=4, department=department, gpu_limit_milli=6000, priority=2)
    elsewhere = make_cluster("elsewhere", nodes=0)
    make_project("other", cluster=elsewhere)
    Membership.objects.create(project=project, user=make_user("ben"), role="member")
    Membership.objects.create(project=project, user=make_user("ana"), role="owner")
    give_engine(elsewhere, MemoryEngine({"nodes": {}}))
    assert sync_projects_once()
    give_engine(elsewhere, None)
    members = (("ana", "owner"), ("ben", "member"))
    assert plant.engine.projects == (ProjectReport("team-a", 4000, 6000, 4000, 2, "research", members),)
    assert plant.engine.departments == (DepartmentReport("research", 8000, None, 8000, 0),)


def test_a_refusal_stands_among_the_checks_until_it_is_over(plant):
    Cluster.objects.filter(pk=plant.cluster.pk).update(checks=[{"name": "api", "outcome": "ok"}])
    make_project()
    plant.engine.faults.project_refusal = REFUSAL
    sync_projects_once()
    sync_projects_once()
    assert [check["name"] for check in checks(plant)] == ["api", "projects"]
    assert (checks(plant)[1]["outcome"], checks(plant)[1]["message"]) == ("warning", REFUSAL[1])
    assert Event.objects.get().kind == "cluster.projects_refused"  # told once
    plant.engine.faults.project_refusal = None
    sync_projects_once()
    assert [check["name"] for check in checks(plant)] == ["api"]
    assert Event.objects.last().kind == "cluster.projects_synced"


@pytest.mark.parametrize("trouble", ["refuses", "is away", "is broken"])
def test_one_clusters_trouble_keeps_nothing_from_another_nor_from_the_cycle(plant, monkeypatch, trouble):
    # its turn is before the plant's
    first = Cluster.objects.create(pk=plant.cluster.pk - 1, name="first", engine="memory", settings={})
    engine = MemoryEngine({"nodes": {}})
    engine.faults.project_refusal = REFUSAL if trouble == "refuses" else None
    engine.faults.is_unreachable = trouble == "is away"
    if trouble == "is broken":
        monkeypatch.setattr(engine, "sync_projects", lambda *_: 1 / 0)
    give_engine(first, engine)
    job = make_job(make_project())
    assert sync_projects_once()
    plant.settle()
    give_engine(first, None)
    job.refresh_from_db()
    assert [project.name for project in plant.engine.projects] == ["team-a"]
    assert job.state == "running"


def test_one_process_at_a_time_tells(plant):
    make_project()
    assert claim(LEASE, 60)
    assert not sync_projects_once()
    assert plant.engine.projects == ()


def test_who_is_waited_for_while_another_process_tells_is_told_soon_after(plant, monkeypatch):
    monkeypatch.setattr(runner, "SHORT_PAUSE_SECONDS", 0)
    sync_requested.clear()
    loop = Runner()
    claim(LEASE, 60)
    loop._sync_projects()
    assert sync_requested.is_set()  # what that one tells it may have read before we were rung
    Lease.objects.filter(name=LEASE).delete()
    sync_requested.clear()
    loop._sync_projects()
    assert not sync_requested.is_set()
    assert not loop._cycle_wakeup.is_set()  # nobody waited


def test_where_the_planner_decides_nothing_waits_to_be_told(plant):
    sync_requested.clear()
    job = make_job(make_project())
    plant.settle()
    job.refresh_from_db()
    assert (job.state, plant.engine.projects) == ("running", ())
    assert not sync_requested.is_set()
