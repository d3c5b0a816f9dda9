"""The names of live topics, and who may follow them. Any other name is refused."""

import re
from dataclasses import dataclass

from controlplane.live.registry import topic_kinds

OVERVIEW, QUEUE, ACTIVITY, LOGS = "overview", "queue", "activity", "logs"
# Topics of the whole instance, for every signed-in user.
SHARED = (OVERVIEW, QUEUE, ACTIVITY)
# The declared kind of topic whose subjects have logs.
JOB = "job"
LONGEST_NAME = 200
_LOGS = re.compile(r"(?P<subject>.*):logs:(?P<rank>\d{1,5})")

FORBIDDEN, UNKNOWN, GONE, UNREADABLE = "forbidden", "unknown_topic", "gone", "unreadable"


@dataclass(frozen=True, slots=True)
class Topic:
    """A parsed topic. `name`: as requested; `subject`: the name or id of the object, "" for a topic of the whole
    instance; `rank`: of the pod, for kind LOGS."""

    name: str
    kind: str
    subject: str = ""
    rank: int = 0


def kinds() -> tuple[str, ...]:
    """Return all kinds of topics except `activity`, which only our own pages follow."""
    return (OVERVIEW, QUEUE, LOGS, *topic_kinds())


def parse_topic(name: object) -> Topic | None:
    """Return the topic of that name; None for an unknown kind or a malformed name. Whether its subject exists is not
    checked."""
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
    """Return whether a user may follow a topic. `project_ids`: the projects that the user may view (None: all);
    `project_id`: that of the topic's subject (None: it does not exist). All users may follow topics of the whole
    instance, which show each reader only what that reader may see."""
    if topic.kind in SHARED:
        return True
    if project_id is None:
        return False
    return project_ids is None or project_id in project_ids


def project_of(topic: Topic) -> int | None:
    """Return the id of the project of a topic's subject; None if the subject does not exist or the topic has none."""
    kind = topic_kinds().get(JOB if topic.kind == LOGS else topic.kind)
    return kind.project_of(topic.subject) if kind else None
