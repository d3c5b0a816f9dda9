"""Who may see and do what: the only way from a person to an object."""

import uuid

import pytest

from controlplane.access import (
    Actor,
    Forbidden,
    NotVisible,
    project_for,
    require_admin,
    visible_projects,
)
from controlplane.models import Role
from jobs.access import job_for, visible_jobs
from tests.builders import make_job


@pytest.mark.parametrize(
    ("who", "needed", "outcome"),
    [
        ("root", Role.OWNER, None),
        ("ana", Role.OWNER, None),
        ("ben", Role.MEMBER, None),
        ("ben", Role.OWNER, Forbidden),
        ("vera", Role.VIEWER, None),
        ("vera", Role.MEMBER, Forbidden),
        ("chi", Role.VIEWER, NotVisible),
    ],
)
def test_roles_open_a_project_and_its_jobs(cast, who, needed, outcome):
    job = make_job(cast.project, user=cast.ana)
    actor = cast.actor(who)
    for find in (
        lambda: project_for(actor, "team-a", needed=needed),
        lambda: job_for(actor, job.pk, needed=needed),
    ):
        if outcome is None:
            assert find() is not None
        else:
            with pytest.raises(outcome):
                find()


def test_lists_show_only_what_is_visible(cast):
    ours, theirs = make_job(cast.project, user=cast.ana), make_job(cast.other, user=cast.chi)
    assert set(visible_jobs(cast.actor("ben"))) == {ours}
    assert set(visible_jobs(cast.actor("chi"))) == {theirs}
    assert set(visible_jobs(cast.actor("root"))) == {ours, theirs}
    assert [project.name for project in visible_projects(cast.actor("chi"))] == ["team-b"]


@pytest.mark.parametrize("job_id", ["", "1", "not-a-uuid", "\0", str(uuid.UUID(int=0))])
def test_ids_that_are_nobodys_are_not_visible(cast, job_id):
    with pytest.raises(NotVisible):
        job_for(cast.actor("root"), job_id)


def test_a_read_only_token_changes_nothing_whatever_the_role(cast):
    actor = Actor(user=cast.root, is_read_only=True)
    with pytest.raises(Forbidden):
        require_admin(actor)
    with pytest.raises(Forbidden):
        project_for(actor, "team-a", needed=Role.MEMBER)
    assert project_for(actor, "team-a").name == "team-a"
