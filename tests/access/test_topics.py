"""Live topic x person x project: who may follow what, and that nothing of a foreign project is in any state."""

import asyncio

import orjson
import pytest
from django.db import transaction

from controlplane.access import Actor, visible_project_ids
from controlplane.live import topics
from controlplane.live.feeds import Feed, Reader, SubscribeRequest
from controlplane.live.identity import SESSION, TOKEN, Credential, Identity, identify
from controlplane.live.listener import Listener
from controlplane.live.topics import parse_topic
from tests.access.roles import OK
from tests.access.rules import TOPICS
from tests.access.world import PEOPLE, Target, World

pytestmark = pytest.mark.django_db
SIGNED_IN = (*PEOPLE[1:], "read_only")


def test_every_kind_of_topic_has_a_rule(world: World):
    kinds = {topic.kind for name in TOPICS if (topic := parse_topic(_filled(name, world.targets[0])))}
    assert kinds == set(topics.kinds())


@pytest.mark.parametrize("name", TOPICS)
def test_topics(world: World, name: str):
    wrong = []
    for person in SIGNED_IN:
        for target in world.targets:
            topic = _filled(name, target)
            status, text = _follow(world, person, topic)
            if status != target.expected(TOPICS[name], person):
                wrong.append(f"{topic} as {person}: {status}")
            wrong += [f"{topic} as {person} shows {word}" for word in world.leaks(person, text, topic)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", [SESSION, TOKEN])
def test_a_wrong_credential_is_nobody(world: World, kind: str):
    assert identify(Credential(kind, "x" * 40)) is None


def _follow(world: World, person: str, name: str) -> tuple[int, str]:
    """What the hub answers to a subscription: OK with the state, or 403 with the refusal."""
    topic = parse_topic(name)
    assert topic is not None
    with transaction.atomic():
        listener = Listener(_identity(world, person), _deliver, lambda code, reason: None)
        found = Reader().look([], [SubscribeRequest(listener, topic, None)], [], is_recheck_due=False)
    [(_, answer)] = found.answers
    if isinstance(answer, Feed):
        return OK, orjson.dumps(answer.state, default=str).decode()
    assert answer == topics.FORBIDDEN
    return 403, answer


def _identity(world: World, person: str) -> Identity:
    identity = identify(Credential(TOKEN, world.secrets[person]))
    assert identity is not None
    assert identity.project_ids == visible_project_ids(Actor(user=identity.user))
    return identity


async def _deliver(frame: object) -> None:
    await asyncio.sleep(0)


def _filled(name: str, target: Target) -> str:
    return name.format(
        project=target.project.name,
        job=target.job.pk,
        dataset=target.version.dataset_id,
        volume=target.volume.pk,
    )
