"""The rows of the access matrix: the cast, and two projects, one of which has reclaimed GPUs from the other.
Their names occur nowhere else, so that a leak is found in any answer."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from django.conf import settings
from django.test import Client
from django.test.client import ClientHandler

from controlplane.access import SYSTEM
from controlplane.actions.accounts import create_user, issue_token
from controlplane.models import Membership, Project, Role, Token, User
from datasets.actions.caches import cache_version, location_for
from datasets.actions.datasets import tag_version
from datasets.models import (
    Artifact,
    Cache,
    CodeImport,
    DatasetRegistration,
    DatasetVersion,
    Snapshot,
    Volume,
)
from jobs.models import Job
from tests.access.roles import Rule
from tests.artifacts import make_artifact
from tests.builders import make_job
from tests.cast import Cast, make_cast
from tests.code_trees import make_tree
from tests.datasets import make_dataset, make_subset, make_version
from tests.loop.plant import Plant
from tests.volumes import make_snapshot, make_volume

PEOPLE = ("anonymous", "chi", "vera", "ben", "ana", "root")
ROLES = {
    "team-a": {"vera": Role.VIEWER, "ben": Role.MEMBER, "ana": Role.OWNER},
    "team-b": {"chi": Role.OWNER},
}
# what is written into each project, and in no name that everybody may see
MARK = {"team-a": "kilo", "team-b": "lima"}


@dataclass(frozen=True)
class Target:
    """One project, and one object of each kind that a URL can name."""

    project: Project
    job: Job
    user: User
    token: Token
    tree: str
    version: DatasetVersion
    volume: Volume
    snapshot: Snapshot
    cache: Cache
    artifact: Artifact
    code_import: CodeImport
    registration: DatasetRegistration
    job_ids: tuple[object, ...]

    def relation(self, person: str) -> str:
        """Return the column of `Rule` for a person: their role in this project, or `anonymous`, `stranger`,
        `admin` or `read_only`."""
        if person in ("anonymous", "read_only"):
            return person
        return "admin" if person == "root" else ROLES[self.project.name].get(person, "stranger")

    def expected(self, rule: Rule, person: str) -> int:
        if rule.self_ is not None and person == self.user.username:
            return rule.self_
        status: int = getattr(rule, self.relation(person))
        return status


@dataclass
class World:
    """The cast, the two targets, and each person's API tokens (`secrets`) and session cookies."""

    cast: Cast
    targets: tuple[Target, Target]
    secrets: dict[str, str] = field(default_factory=dict)
    cookies: dict[str, str] = field(default_factory=dict)
    # Loading the middleware takes as long as a request.
    handler: ClientHandler = field(default_factory=lambda: ClientHandler(enforce_csrf_checks=False))

    @cached_property
    def secret_words(self) -> dict[str, re.Pattern[str]]:
        """Return by project a pattern of what only its readers may see: its mark, and the ids of its jobs."""
        return {
            target.project.name: re.compile(
                "|".join([rf"{MARK[target.project.name]}-[\w-]*", *map(str, target.job_ids)])
            )
            for target in self.targets
        }

    def client(self, person: str, credential: str) -> Client:
        """Return a new client with the person's `token` or `session`, so that cookies of an earlier test are
        gone. Neither is sent for `anonymous`."""
        headers = {}
        if person != "anonymous" and credential == "token":
            headers["Authorization"] = f"Bearer {self.secrets[person]}"
        if person != "anonymous" and credential == "session":
            headers["Cookie"] = f"{settings.SESSION_COOKIE_NAME}={self.cookies[person]}"
        client = Client(headers=headers, raise_request_exception=False)
        client.handler = self.handler
        return client

    def leaks(self, person: str, text: str, sent: str) -> list[str]:
        """Return the secret words in `text` of projects that the person may not read. `sent`: the URL; words in
        it are left out."""
        if person in ("root", "read_only"):
            return []
        found = []
        for target in self.targets:
            if target.relation(person) in ("stranger", "anonymous"):
                found += self.secret_words[target.project.name].findall(text)
        return [word for word in found if word not in sent]


@contextmanager
def build() -> Iterator[World]:
    """Context manager that yields the rows for one test module. Call it inside a transaction that is rolled back."""
    plant, cast = Plant(), make_cast()
    try:
        yield _world(plant, cast)
    finally:
        plant.close()


def _world(plant: Plant, cast: Cast) -> World:
    projects = {"team-a": cast.project, "team-b": cast.other}
    for name, project in projects.items():
        Project.objects.filter(pk=project.pk).update(description=f"{MARK[name]}-description")
        marked = create_user(f"{MARK[name]}-user", None, actor=SYSTEM, email=f"{MARK[name]}-mail@example.org")
        Membership.objects.create(project=project, user=marked, role=Role.MEMBER)
    jobs = {"team-a": _job(cast.project, 0, gpus=4)}
    for number in range(1, 4):
        _job(cast.project, number, gpus=4)
    plant.settle()
    jobs["team-b"] = _job(cast.other, 0, gpus=4, ports=[{"port": 8888}])
    plant.in_seconds(3)
    assert set(Job.objects.values_list("state", flat=True)) == {"running", "queued"}
    assert Job.objects.filter(project=cast.project, reason="preempted").exists()
    users = {"team-a": cast.ben, "team-b": cast.chi}
    trees = {
        name: make_tree(projects[name], {f"{mark}-file.py": mark.encode()}, commit=f"{mark}-commit")
        for name, mark in MARK.items()
    }
    versions = {name: _version(projects[name], mark) for name, mark in MARK.items()}
    targets = tuple(
        Target(
            projects[name],
            jobs[name],
            users[name],
            _token(users[name], MARK[name]),
            trees[name],
            versions[name],
            volume := _volume(projects[name], MARK[name]),
            make_snapshot(volume),
            cache_version(versions[name], location_for(plant.cluster), actor=SYSTEM),
            make_artifact(
                jobs[name], f"{MARK[name]}-artifact", {f"{MARK[name]}-file": f"{MARK[name]}-content"}
            ),
            CodeImport.objects.create(
                project=projects[name], url=f"https://{MARK[name]}.example/x", ref="main"
            ),
            DatasetRegistration.objects.create(dataset=versions[name].dataset, path=f"/{MARK[name]}"),
            tuple(projects[name].jobs.values_list("pk", flat=True)),
        )
        for name in MARK
    )
    world = World(cast, (targets[0], targets[1]))
    for person in PEOPLE[1:]:
        _sign_in(world, person, getattr(cast, person))
    world.secrets["read_only"] = issue_token(cast.root, "reads", actor=SYSTEM, is_read_only=True)[1]
    return world


def _job(project: Project, number: int, **body: object) -> Job:
    mark = MARK[project.name]
    user = User.objects.get(username=f"{mark}-user")
    words = {
        "env": {"WORD": f"{mark}-env"},
        "labels": {f"{mark}-label": f"{mark}-value", "scaling-report": f"{mark}-report"},
        "image": f"{mark}-image",
    }
    return make_job(project, f"{mark}-job-{number}", user, **words, **body)


def _token(user: User, mark: str) -> Token:
    return issue_token(user, f"{mark}-token", actor=SYSTEM)[0]


def _version(project: Project, mark: str) -> DatasetVersion:
    dataset = make_dataset(project, f"{mark}-dataset")
    version = make_version(dataset, {f"{mark}-file": f"{mark}-content"}, f"{mark}-message")
    tag_version(dataset, f"{mark}-tag", version, actor=SYSTEM)
    make_subset(version, f"{mark}-part", "*")
    return version


def _volume(project: Project, mark: str) -> Volume:
    return make_volume(project, f"{mark}-volume", {"file": f"{mark}-content"})


def _sign_in(world: World, person: str, user: User) -> None:
    client = Client()
    client.force_login(user)
    world.cookies[person] = client.cookies[settings.SESSION_COOKIE_NAME].value
    world.secrets[person] = issue_token(user, "matrix", actor=SYSTEM)[1]
