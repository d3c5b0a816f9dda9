"""The names of live topics, and who may listen. What is not named here or declared by an app is refused."""

import re
from dataclasses import dataclass

from controlplane.live.registry import topic_kinds

OVERVIEW, QUEUE, ACTIVITY, LOGS = "overview", "queue", "activity", "logs"
# Topics of the whole instance, for everyone who is signed in.
SHARED = (OVERVIEW, QUEUE, ACTIVITY)
# The declared kind whose subjects have logs.
JOB = "job"
LONGEST_NAME = 200
_LOGS = re.compile(r"(?P<subject>.*):logs:(?P<rank>\d{1,5})")

FORBIDDEN, UNKNOWN, GONE, UNREADABLE = "forbidden", "unknown_topic", "gone", "unreadable"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it was asked for. `subject` is what its kind identifies an object by: a project's name, a job's id."""

    name: str
    kind: str
    subject: str = ""
    rank: int = 0


def kinds() -> tuple[str, ...]:
    """Return every kind of topic but `activity`, which pages alone follow."""
    return (OVERVIEW, QUEUE, LOGS, *topic_kinds())


def parse_topic(name: object) -> Topic | None:
    """Return the topic of that name, None for an unknown kind of topic."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return None
    if name in SHARED:
        return Topic(str(name), str(name))
    prefix, _, asked = name.partition(":")
    kind = topic_kinds().get(prefix)
    if kind is None:
        return None
    logs = _LOGS.fullmatch(asked) if prefix == JOB else None
    subject = kind.parse(logs["subject"] if logs else asked)
    if subject is None:
        return None
    return Topic(name, LOGS, subject, int(logs["rank"])) if logs else Topic(name, prefix, subject)


def may_listen(topic: Topic, project_ids: frozenset[int] | None, project_id: int | None) -> bool:
    """Return whether a user who may view `project_ids` (None: all) may subscribe to a topic of project `project_id`.

    A topic without a project of its own shows each reader what that reader may see; for the others, project None
    means that the subject does not exist.
    """
    if topic.kind in SHARED:
        return True
    if project_id is None:
        return False
    return project_ids is None or project_id in project_ids


def project_of(topic: Topic) -> int | None:
    """Return the id of the project that a topic belongs to, None when its subject does not exist."""
    kind = topic_kinds().get(JOB if topic.kind == LOGS else topic.kind)
    return kind.project_of(topic.subject) if kind else None
