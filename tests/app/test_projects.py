"""Verbs on projects."""

import pytest

from controlplane import app_holdings
from controlplane.access import Forbidden
from controlplane.actions.errors import Conflict
from controlplane.actions.projects import (
    create_project,
    delete_project,
    edit_project,
    oversold_warning,
    remove_member,
    set_member,
    taken_along,
)
from controlplane.app_holdings import Holdings
from controlplane.models import AuditEntry, Command, Event, Project, Role
from jobs.actions import stop_job
from tests.builders import make_cluster, make_job


def test_creating_a_project_is_for_admins_and_leaves_a_trace(cast):
    fields = {"name": "team-c", "cluster": make_cluster(), "gpu_quota_milli": 2000}
    with pytest.raises(Forbidden):
        create_project(fields, actor=cast.actor("ana"))
    create_project(fields, actor=cast.actor("root"))
    assert Event.objects.filter(kind="project.created").count() == 1
    assert AuditEntry.objects.get(verb="project.create").after["gpu_quota_milli"] == 2000
    with pytest.raises(Conflict):
        create_project(fields, actor=cast.actor("root"))


def test_owners_edit_words_but_not_their_quota(cast):
    edit_project(cast.project, {"description": "lanes"}, actor=cast.actor("ana"))
    with pytest.raises(Forbidden):
        edit_project(cast.project, {"gpu_quota_milli": 16000}, actor=cast.actor("ana"))
    edit_project(cast.project, {"gpu_quota_milli": 16000}, actor=cast.actor("root"))
    assert Project.objects.get(name="team-a").gpu_quota_milli == 16000


def test_a_quota_above_the_cluster_is_allowed_with_a_warning(cast):
    edit_project(cast.project, {"gpu_quota_milli": 17000}, actor=cast.actor("root"))
    assert "17" in oversold_warning(cast.project)
    assert oversold_warning(cast.other) is None


def test_a_project_with_unfinished_jobs_stays(cast):
    job = make_job(cast.project, user=cast.ana)
    with pytest.raises(Conflict):
        delete_project(cast.project, actor=cast.actor("root"))
    along = taken_along(cast.project)
    assert (along["unfinished_jobs"], along["finished_jobs"], along["members"]) == (1, 0, 3)
    stop_job(job, actor=cast.actor("ana"))
    delete_project(cast.project, actor=cast.actor("root"))
    assert not Project.objects.filter(name="team-a").exists()


def test_a_project_that_has_moved_meanwhile_is_not_moved_twice(cast):
    second, stale = make_cluster("second", nodes=0), Project.objects.get(name="team-a")
    for project in (cast.project, stale):
        edit_project(project, {"cluster": second}, actor=cast.actor("root"))
    assert Command.objects.get(kind="forget_project").cluster == cast.other.cluster


def test_who_is_no_member_any_more_is_not_removed_again(cast):
    """Two owners remove the same member: the second must not write a removal that was none."""
    for _ in range(2):
        remove_member(cast.project, cast.ben, actor=cast.actor("ana"))
    assert AuditEntry.objects.filter(verb="project.remove_member").count() == 1
    assert Event.objects.filter(kind="project.member_removed").count() == 1


def test_the_last_owner_stays(cast):
    with pytest.raises(Conflict):
        remove_member(cast.project, cast.ana, actor=cast.actor("root"))
    set_member(cast.project, cast.ben, Role.OWNER, actor=cast.actor("ana"))
    remove_member(cast.project, cast.ana, actor=cast.actor("ben"))
    assert list(
        cast.project.memberships.filter(role=Role.OWNER).values_list("user__username", flat=True)
    ) == ["ben"]


def test_what_all_apps_report_of_a_project_is_added(cast, monkeypatch):
    class Flows(Holdings):
        def statuses(self, project_ids):
            return {pk: {"allocated": 1000, "queued": 2} for pk in project_ids}

    class Jobs(Holdings):
        def statuses(self, project_ids):
            return {cast.project.pk: {"allocated": 500, "waiting": 250, "running": 1, "queued": 1}}

    monkeypatch.setattr(app_holdings, "holdings", lambda: (Flows(), Jobs()))
    both = {"allocated": 1500, "waiting": 250, "running": 1, "queued": 3}
    first, other = cast.project.pk, cast.other.pk
    assert app_holdings.project_statuses([first, other]) == {
        first: both,
        other: {"allocated": 1000, "queued": 2},
    }
