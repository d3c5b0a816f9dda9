"""The users of every access test: in team-a ana is owner, ben member and vera viewer; chi is a stranger to it.

root is the site's admin and in no project. The department research is empty."""

from dataclasses import dataclass

from controlplane.access import SYSTEM, Actor
from controlplane.actions.accounts import create_user
from controlplane.models import Department, Membership, Project, Role, User
from tests.builders import make_project

PASSWORD = "correct horse battery"


@dataclass(frozen=True)
class Cast:
    """The users, the project team-a, and chi's project team-b (`other`)."""

    root: User
    ana: User
    ben: User
    vera: User
    chi: User
    project: Project
    other: Project

    def actor(self, name: str) -> Actor:
        return Actor(user=getattr(self, name))


def make_cast() -> Cast:
    people = {name: create_user(name, PASSWORD, actor=SYSTEM) for name in ("ana", "ben", "vera", "chi")}
    root = create_user("root", PASSWORD, actor=SYSTEM, is_admin=True)
    project, other = make_project("team-a"), make_project("team-b")
    Department.objects.create(name="research")
    roles = {"ana": Role.OWNER, "ben": Role.MEMBER, "vera": Role.VIEWER}
    for name, role in roles.items():
        Membership.objects.create(project=project, user=people[name], role=role)
    Membership.objects.create(project=other, user=people["chi"], role=Role.OWNER)
    return Cast(root=root, project=project, other=other, **people)
